"""Two animals in one picture: does the map move to the animal that is asked for?

A held-out cat and a held-out dog of the Oxford-IIIT Pet data set, side by side in one square, explained by the default
method for the breed of each. A hit: more than half of the positive scores is on the half of that animal.

    python benchmarks/two_animals.py FOLDER --mosaics 24 --seed 0

FOLDER holds test.txt and images.zip of the data set.
"""

import argparse
import io
import random
import zipfile
from pathlib import Path

from PIL import Image, ImageOps

import whyformer as why
from whyformer.integrations import measure_share

HALVES = {"left": (0, 0, 0.5, 1), "right": (0.5, 0, 1, 1)}


def read_names(folder: Path) -> dict[str, list[str]]:
    """The held-out photos of cats and dogs; in test.txt a line is: name, class, species (1 cat, 2 dog), breed."""
    lines = [line.split() for line in (folder / "test.txt").read_text().splitlines() if line]
    return {kind: [line[0] for line in lines if line[2] == number] for kind, number in (("cat", "1"), ("dog", "2"))}


def read_photo(photos: zipfile.ZipFile, name: str) -> Image.Image:
    path = next(path for path in photos.namelist() if path.endswith(f"/{name}.jpg") or path == f"{name}.jpg")
    return Image.open(io.BytesIO(photos.read(path))).convert("RGB")


def join_photos(left: Image.Image, right: Image.Image, side: int = 288) -> Image.Image:
    """Both in one square, each cut to half of it."""
    mosaic = Image.new("RGB", (side, side))
    for start, photo in ((0, left), (side // 2, right)):
        mosaic.paste(ImageOps.fit(photo, (side // 2, side)), (start, 0))
    return mosaic


def find_breed(name: str, labels: tuple[str, ...]) -> str:
    breed = name.rpartition("_")[0].replace("_", " ").lower()
    return next(label for label in labels if label.replace("_", " ").lower() == breed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mosaics", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default=None)
    asked = parser.parse_args()
    model, names, draw = why.open("demo/pets"), read_names(asked.folder), random.Random(asked.seed)
    photos, hits = zipfile.ZipFile(asked.folder / "images.zip"), 0
    for _ in range(asked.mosaics):
        pair = [draw.choice(names["cat"]), draw.choice(names["dog"])]
        draw.shuffle(pair)
        mosaic = join_photos(*(read_photo(photos, name) for name in pair))
        for name, box in zip(pair, HALVES.values(), strict=True):
            e = why.explain(model, mosaic, asked.method, target=find_breed(name, model.labels))
            share = measure_share(e, box=box)
            hits += share > 0.5
            print(f"{name:32} {share:.2f}", flush=True)
    print(f"on the half of the animal asked for: {hits} of {2 * asked.mosaics}")


if __name__ == "__main__":
    main()
