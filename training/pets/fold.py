"""Which photos are held out, and the breed that a photo's name tells."""

from pathlib import Path

FOLD = Path(__file__).parent / "fold.txt"


def read_fold() -> tuple[set[str], set[str]]:
    """Names of the held-out photos, and of the training photos left out as their copies."""
    rows = [line.split() for line in FOLD.read_text().splitlines() if line and not line.startswith("#")]
    return {name for name, role in rows if role == "held-out"}, {name for name, role in rows if role == "copy"}


def breed_of(photo: str) -> str:
    """`great_pyrenees_12` -> `great_pyrenees`."""
    return photo.rsplit("_", 1)[0]


def breeds_of_fold() -> list[str]:
    """The 37 breeds, in the order of their class numbers."""
    return sorted({breed_of(photo) for photo in read_fold()[0]}, key=str.lower)


def is_cat(breed: str) -> bool:
    """The data set writes cats with a capital."""
    return breed[0].isupper()


def readable(breed: str) -> str:
    """`great_pyrenees` -> `Great Pyrenees`."""
    return breed.replace("_", " ").title()
