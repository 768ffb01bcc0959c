"""Shapes: generated images in which the evidence for each class is known for every pixel.

Objects of eight classes, of any colour, size and rotation, are painted on a textured background with distracting lines
and blobs. Colour, position, background and distractors are independent of the class, so only the pixels of an object
show its class. Objects do not touch each other and are painted over the distractors, so `masks` marks exactly the
pixels that an object changed; `backgrounds` are the same images without any object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from whyformer.demo.draws import generate_images, refuse_outside_range, stack_columns
from whyformer.demo.painting import (
    SHAPE_TESTS,
    SIZE,
    FloatArray,
    blend,
    draw_background,
    draw_blob,
    draw_line,
    draw_object,
)

SMALLEST_RADIUS, LARGEST_RADIUS = 11.0, 20.0  # of an object, in pixels


CLASSES = tuple(SHAPE_TESTS)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Generated images and their ground truth."""

    images: NDArray[np.uint8]  # image height width channel
    labels: NDArray[np.int64]  # image object: indices into CLASSES, all different within an image
    masks: NDArray[np.bool_]  # image object height width: every pixel that the object changed
    backgrounds: NDArray[np.uint8]  # image height width channel

    def __len__(self) -> int:
        return len(self.images)

    def without(self, which: int) -> NDArray[np.uint8]:
        """The images without object number `which`."""
        return np.where(self.masks[:, which, :, :, None], self.backgrounds, self.images)


def generate(count: int, seed: int, *, objects: int = 1) -> Scenes:
    """`count` images with 1 to 3 objects of different classes; image i depends only on `seed`, i and `objects`."""
    refuse_outside_range("objects", objects, 1, 3)
    return stack_scenes(generate_images(count, seed, partial(_draw_scene, objects=objects), objects), objects)


DrawnScene = tuple[NDArray[np.uint8], list[int], list[NDArray[np.bool_]], NDArray[np.uint8]]


def stack_scenes(scenes: Sequence[DrawnScene], objects: int) -> Scenes:
    """Scenes with the same number of objects as arrays."""
    image, mask = (np.uint8, (SIZE, SIZE, 3)), (np.bool_, (objects, SIZE, SIZE))
    return Scenes(*stack_columns(scenes, image, (np.int64, (objects,)), mask, image))


def _draw_scene(rng: np.random.Generator, objects: int) -> DrawnScene:
    canvas = draw_background(rng)
    for draw in (draw_blob, draw_line):
        for _ in range(rng.integers(2, 6)):
            blend(canvas, *draw(rng), rng.uniform(0, 255, 3))
    background = canvas.clip(0, 255).astype(np.uint8)
    labels = [int(label) for label in rng.permutation(len(CLASSES))[:objects]]
    masks = []
    for label, (centre, radius) in zip(labels, _draw_places(rng, objects), strict=True):
        coverage, corner = draw_object(rng, CLASSES[label], centre, radius)
        masks.append(blend(canvas, coverage, corner, _draw_visible_colour(rng, canvas, coverage, corner)))
    image = np.where(np.any(masks, axis=0)[:, :, None], canvas.clip(0, 255).astype(np.uint8), background)
    return image, labels, masks, background


def _draw_places(rng: np.random.Generator, objects: int) -> list[tuple[FloatArray, float]]:
    """Centre and radius of each object, apart from each other and inside the image."""
    while True:
        radii = rng.uniform(SMALLEST_RADIUS, LARGEST_RADIUS - 2.0 * (objects - 1), objects)
        centres = [rng.uniform(radius, SIZE - radius, 2) for radius in radii]
        if all(
            np.hypot(*(centres[i] - centres[j])) > radii[i] + radii[j] + 2 for i in range(objects) for j in range(i)
        ):
            return list(zip(centres, radii.tolist(), strict=True))


def _draw_visible_colour(
    rng: np.random.Generator, canvas: FloatArray, coverage: FloatArray, corner: tuple[int, int]
) -> FloatArray:
    """A colour that differs from the average colour under the object."""
    top, left = corner
    height, width = coverage.shape
    under = canvas[top : top + height, left : left + width][coverage > 0].mean(0)
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - under) > 110:
            return colour + rng.normal(0, 6, (height, width, 3))
