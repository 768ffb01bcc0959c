"""The figures of the pages on reproducing papers that need nothing but what ships.

    python docs/reproduce_figures.py          draws docs/images/reproduce/two-classes.webp and heads-and-rules.webp

The other figures in that folder are what `whyformer reproduce ... -o FOLDER` saved with the data that their page names.
"""

import io
from pathlib import Path

from PIL import Image

import whyformer as why
from whyformer.demo.tour import CAT
from whyformer_papers.chefer import explain_two_classes

FOLDER = Path(__file__).parent / "images" / "reproduce"
WIDEST = 1300


def save_figure(name: str, png: bytes) -> None:
    """As WebP, no wider than a page needs."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.thumbnail((WIDEST, 10 * WIDEST))
    FOLDER.mkdir(parents=True, exist_ok=True)
    image.save(FOLDER / f"{name}.webp", quality=85, method=6)


def main() -> None:
    save_figure("two-classes", explain_two_classes(why.open("demo/shapes")).draw().png())
    save_figure("heads-and-rules", why.compare_redistribution("demo/pets", CAT).draw().png())


if __name__ == "__main__":
    main()
