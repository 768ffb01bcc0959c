"""Two animals in one picture: does the map move to the animal that is asked for?

A held-out cat and a held-out dog of the Oxford-IIIT Pet data set, side by side in one square, explained by the default
method for the breed of each. A hit: more than half of the positive scores is on the half of that animal. A map that
ignores the class hits exactly half of the questions.

    python benchmarks/two_animals.py FOLDER --mosaics 100 --seed 1

FOLDER holds test.txt, images.zip and trimaps.zip of the data set. How a mosaic is made, decided before it was run:

* cats and dogs are drawn at random from all held-out photos, none is left out for its result;
* a half is cut out around the middle of the animal's box in the trimap (`--cut animal`), since half a square from the
  middle of a wide photo often has no animal in it; `--cut middle` and `--cut squeeze` do without the trimap;
* all questions count. Questions about a breed that the model names when it sees that half alone are also counted apart:
  only there is it known that the model sees what it is asked for.
"""

import argparse
import io
import random
import zipfile
from pathlib import Path

from PIL import Image, ImageOps

import whyformer as why
from whyformer.integrations import measure_share

Box = tuple[int, int, int, int]
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
    return join_halves(*(ImageOps.fit(photo, (side // 2, side)) for photo in (left, right)))


def join_halves(left: Image.Image, right: Image.Image) -> Image.Image:
    mosaic = Image.new("RGB", (2 * left.width, left.height))
    mosaic.paste(left, (0, 0))
    mosaic.paste(right, (left.width, 0))
    return mosaic


def cut_half(photo: Image.Image, animal: Box, cut: str, side: int = 288) -> Image.Image:
    """Half a square of this photo: around its animal, from its middle, or all of it, squeezed."""
    size = (side // 2, side)
    if cut == "squeeze":
        return photo.resize(size, Image.Resampling.BICUBIC)
    if cut == "middle":
        return ImageOps.fit(photo, size)
    left, top, right, bottom = animal
    width, height = min(photo.width, photo.height / 2), min(photo.height, photo.width * 2)
    x = min(max((left + right - width) / 2, 0), photo.width - width)
    y = min(max((top + bottom - height) / 2, 0), photo.height - height)
    return photo.resize(size, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))


def find_animal(trimaps: zipfile.ZipFile, name: str) -> Box:
    """The box around the pixels of the pet (1 in the trimap)."""
    path = next(path for path in trimaps.namelist() if Path(path).name == f"{name}.png")
    trimap = Image.open(io.BytesIO(trimaps.read(path)))
    return trimap.point([int(value == 1) for value in range(256)]).getbbox() or (0, 0, *trimap.size)


def find_breed(name: str, labels: tuple[str, ...]) -> str:
    breed = name.rpartition("_")[0].replace("_", " ").lower()
    return next(label for label in labels if label.replace("_", " ").lower() == breed)


def name_breed(model: why.Model, half: Image.Image) -> str:
    """The breed that the model names when the half is all it sees, on the grey that stands for nothing."""
    alone = Image.new("RGB", (half.height, half.height), (128, 128, 128))
    alone.paste(half, ((half.height - half.width) // 2, 0))
    return why.explain(model, alone, "raw_attention").targets[0].label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mosaics", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", default=None)
    parser.add_argument("--cut", choices=("animal", "middle", "squeeze"), default="animal")
    asked = parser.parse_args()
    model, names, draw = why.open("demo/pets"), read_names(asked.folder), random.Random(asked.seed)
    photos, trimaps = (zipfile.ZipFile(asked.folder / name) for name in ("images.zip", "trimaps.zip"))
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(asked.mosaics):
        pair = [draw.choice(names["cat"]), draw.choice(names["dog"])]
        draw.shuffle(pair)
        halves = [cut_half(read_photo(photos, name), find_animal(trimaps, name), asked.cut) for name in pair]
        for name, half, box in zip(pair, halves, HALVES.values(), strict=True):
            breed = find_breed(name, model.labels)
            share = measure_share(why.explain(model, join_halves(*halves), asked.method, target=breed), box=box)
            named = name_breed(model, half)
            hits[named == breed].append(share > 0.5)
            print(f"{name:32} {share:.2f}  alone: {named}", flush=True)
    every = hits[True] + hits[False]
    print(f"on the half of the animal asked for: {sum(every)} of {len(every)};", end=" ")
    print(f"{sum(hits[True])} of {len(hits[True])} where the model names the breed from that half alone")


if __name__ == "__main__":
    main()
