"""Files to try things on: a photograph, film reviews with labels, and passages with a question.

why.demo.sample("cat.jpg")           or whyformer demo --sample cat.jpg
"""

import os
from pathlib import Path

from whyformer._plain import archive
from whyformer.errors import InputError, OutputError, suggest_nearest

SAMPLES = Path(__file__).parent / "samples"
SAMPLE_NAMES = ("cat.jpg", "passages.txt", "reviews.csv")


def sample(name: str = "cat.jpg", folder: str | os.PathLike[str] = ".") -> Path:
    """Copy a bundled file into a folder, by default the current one; returns its path.

    A file of that name that holds something else is left alone.
    """
    if name not in SAMPLE_NAMES:
        nearest = suggest_nearest(str(name), SAMPLE_NAMES)
        raise InputError(
            f"There is no sample {name!r}.{nearest} Available: {', '.join(SAMPLE_NAMES)}.", code="E_OPTION"
        )
    contents, path = (SAMPLES / name).read_bytes(), Path(folder) / name
    if path.exists() and (not path.is_file() or path.read_bytes() != contents):
        raise OutputError(f"{str(path)!r} is there already and is not the sample. Move it, or use another folder.")
    archive.write_file(path, contents)
    return path
