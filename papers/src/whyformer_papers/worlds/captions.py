"""Captions: generated images of two coloured shapes, and captions that name one of them.

Two objects, each of one of four shapes and six colours, are painted on a grey, noisy background; they differ in shape
and in colour. A caption names the shape and the colour of one of them. So the evidence for a caption is known on both
sides: in the image the pixels of that object (`masks`), in the caption two words (`words_of`).
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whyformer.demo.draws import generate_images, stack_columns
from whyformer.demo.shapes import SHAPE_TESTS

SIZE = 48  # pixels a side
RADIUS = (8.0, 10.0)  # of an object, in pixels
TURN = 0.25  # radians to either side
SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = {
    "red": (205, 45, 45), "green": (40, 150, 60), "blue": (50, 80, 205),
    "yellow": (225, 200, 40), "purple": (150, 60, 175), "white": (245, 245, 245),
}  # fmt: skip
NAMES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
TEMPLATES = (
    "a {}",
    "there is a {} here",
    "a photo of a {}",
    "look , a {} on a grey wall",
    "somewhere in the image is a {}",
    "the {} is what this image shows",
)
VOCABULARY = tuple(dict.fromkeys([*" ".join(TEMPLATES).replace("{}", "").split(), *COLOURS, *SHAPES]))


@dataclass(frozen=True, eq=False)
class CaptionedScenes:
    """Generated images, a caption for one object of each, and the ground truth."""

    images: NDArray[np.uint8]  # image height width channel
    labels: NDArray[np.int64]  # image object: indices into NAMES; the caption names object 0
    masks: NDArray[np.bool_]  # image object height width
    captions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


def generate(count: int, seed: int) -> CaptionedScenes:
    """`count` images of two objects with a caption for the first; image i depends only on `seed` and i."""
    scenes = generate_images(count, seed, _draw_captioned_scene)
    captions = tuple(write_caption(labels[0], random.Random(f"{seed} {i}")) for i, (_, labels, _) in enumerate(scenes))
    shapes = (np.uint8, (SIZE, SIZE, 3)), (np.int64, (2,)), (np.bool_, (2, SIZE, SIZE))
    images, labels, masks = stack_columns(scenes, *shapes)
    return CaptionedScenes(images, labels, masks, captions)


def write_caption(label: int, rng: random.Random) -> str:
    """A sentence that names the object, in one of several wordings."""
    return rng.choice(TEMPLATES).format(NAMES[label])


def words_of(caption: str) -> tuple[str, str]:
    """The two words of a caption that name its object: the colour and the shape."""
    name = next(name for name in NAMES if name in caption)
    colour, shape = name.split()
    return colour, shape


def _draw_captioned_scene(rng: np.random.Generator) -> tuple[NDArray[np.uint8], list[int], list[NDArray[np.bool_]]]:
    image = np.clip(rng.uniform(90, 150) + rng.normal(0, 12, (SIZE, SIZE, 3)), 0, 255)
    colours, shapes = rng.permutation(len(COLOURS))[:2], rng.permutation(len(SHAPES))[:2]
    masks = []
    for colour, shape, (x, y, radius) in zip(colours, shapes, _draw_two_places(rng), strict=True):
        mask = _draw_mask(SHAPES[shape], x, y, radius, rng.uniform(-TURN, TURN))
        paint = np.array(list(COLOURS.values())[colour]) + rng.normal(0, 10, (SIZE, SIZE, 3))
        image = np.where(mask[:, :, None], np.clip(paint, 0, 255), image)
        masks.append(mask)
    labels = [int(colour) * len(SHAPES) + int(shape) for colour, shape in zip(colours, shapes, strict=True)]
    return image.astype(np.uint8), labels, masks


def _draw_two_places(rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """x, y and radius of two objects that do not touch."""
    while True:
        radii = rng.uniform(*RADIUS, 2)
        (x, y), (u, v) = (rng.uniform(radius, SIZE - radius, 2) for radius in radii)
        if np.hypot(x - u, y - v) > radii.sum() + 1:
            return [(x, y, radii[0]), (u, v, radii[1])]


def _draw_mask(shape: str, x: float, y: float, radius: float, angle: float) -> NDArray[np.bool_]:
    """The pixels whose centre is inside the turned shape."""
    across, down = (np.arange(SIZE) + 0.5 - x)[None, :] / radius, (np.arange(SIZE) + 0.5 - y)[:, None] / radius
    turned = across * np.cos(angle) + down * np.sin(angle), down * np.cos(angle) - across * np.sin(angle)
    return SHAPE_TESTS[shape](*turned)
