"""Worlds of images: shapes and creatures are generated; pets are photographs of three breeds, where present."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from whyformer.demo import creatures, shapes

SHAPES = ("triangle", "star", "cross")
CREATURES = ("abo", "eku", "ivo")
BREEDS = ("Birman", "Ragdoll", "Siamese")  # cats that look alike


@dataclass(frozen=True, eq=False)
class ImageWorld:
    """Unmarked images of one seed: the first `train` to train on, then `shown` to explain, the rest to measure."""

    name: str
    classes: tuple[str, ...]
    images: NDArray[np.uint8]  # image height width channel
    labels: NDArray[np.int64]
    train: int
    shown: int


def make_shapes(seed: int, train: int = 1200, shown: int = 240, measured: int = 300) -> ImageWorld:
    """One faint object in each image: a mark is easier to learn than a shape."""
    numbers = [shapes.CLASSES.index(name) for name in SHAPES]
    images, labels = [], []
    while len(labels) < train + shown + measured:
        scenes = shapes.generate(200, 28_000_000 + 10_000 * seed + len(images))
        fit = np.isin(scenes.labels[:, 0], numbers)
        images.append((0.55 * scenes.backgrounds[fit] + 0.45 * scenes.images[fit]).round().astype(np.uint8))
        labels.extend(numbers.index(label) for label in scenes.labels[fit, 0])
    return ImageWorld("shapes", SHAPES, np.concatenate(images), np.array(labels), train, shown)


def make_creatures(seed: int, train: int = 1200, shown: int = 240, measured: int = 300) -> ImageWorld:
    numbers = [creatures.CLASSES.index(name) for name in CREATURES]
    images, labels = [], []
    while len(labels) < train + shown + measured:
        drawn = creatures.generate(300, 29_000_000 + 10_000 * seed + len(images))
        fit = np.isin(drawn.labels, numbers)
        images.append(drawn.images[fit])
        labels.extend(numbers.index(label) for label in drawn.labels[fit])
    return ImageWorld("creatures", CREATURES, np.concatenate(images), np.array(labels), train, shown)


def read_pets(folder: Path, seed: int, shown: int = 60) -> ImageWorld:
    """All photos of BREEDS, in an order drawn by `seed`; of each breed `shown` are explained, and also measured."""
    photos, labels = [], []
    with zipfile.ZipFile(folder / "images.zip") as archive:
        names = sorted(name for name in archive.namelist() if Path(name).stem.rpartition("_")[0] in BREEDS)
        for name in names:
            photo = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            photos.append(crop_square(photo, 112))
            labels.append(BREEDS.index(Path(name).stem.rpartition("_")[0]))
    order = np.random.default_rng([seed, 7]).permutation(len(labels))
    images, kinds = np.stack(photos)[order], np.array(labels)[order]
    shown_first = np.argsort([np.sum(kinds[:i] == kind) >= shown for i, kind in enumerate(kinds)], kind="stable")
    chosen, rest = shown_first[: shown * len(BREEDS)], shown_first[shown * len(BREEDS) :]
    order = np.concatenate([rest, chosen, chosen])
    return ImageWorld("pets", BREEDS, images[order], kinds[order], len(rest), len(chosen))


def crop_square(photo: Image.Image, size: int) -> NDArray[np.uint8]:
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    return np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))


def load_world(name: str, seed: int, cache: Path, photos: str | None) -> ImageWorld:
    """A world, made once and kept beside the models."""
    file = cache / "worlds" / f"{name}-{seed}.npz"
    if not file.exists():
        if name == "pets":
            assert photos is not None
            world = read_pets(Path(photos), seed)
        else:
            world = {"shapes": make_shapes, "creatures": make_creatures}[name](seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        sizes = np.array([world.train, world.shown])
        np.savez(file, images=world.images, labels=world.labels, classes=np.array(world.classes), sizes=sizes)
    with np.load(file) as kept:
        train, shown = (int(size) for size in kept["sizes"])
        return ImageWorld(name, tuple(map(str, kept["classes"])), kept["images"], kept["labels"], train, shown)
