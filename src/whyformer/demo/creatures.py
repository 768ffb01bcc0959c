"""Creatures: a class is a set of parts, every part can be removed alone, and what each says is known exactly.

A creature has a body and up to four parts: a crest, a wing, a tail and a foot, each in one of three forms. Its nine
classes are the rows of an orthogonal array: any two classes share the form of exactly one part. So, with everything
else drawn independently of the class (position, size, all colours, spots on the body, background),

    no part shown     every class is equally likely: 1/9
    one part          three classes remain: 1/3 each
    two or more       one class remains

By default a creature shows two of its parts. Each of them is then necessary: remove one, and the probability of the
class falls from 1 to 1/3; the body and the spots say nothing. `masks[:, k]` are the pixels that part k changed, empty
if it is not shown; `without(k)` is the same image without it.

As FunnyBirds (Hesse, Schaub-Meyer & Roth, ICCV 2023, arXiv:2308.06248), in two dimensions; there a class has five parts
of 4 to 9 forms, and how much each part counts is not fixed by the design.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from whyformer.demo.draws import generate_images, refuse_outside_range, stack_columns
from whyformer.demo.painting import SHAPE_TESTS, SIZE, FloatArray, blend, draw_background, draw_blob, make_window

PARTS = ("crest", "wing", "tail", "foot")
FORMS = ("triangle", "ring", "cross")  # of every part
CLASSES = ("abo", "bem", "cid", "dov", "eku", "fim", "gra", "hul", "ivo")
# The form of each part, by class: an orthogonal array of strength 2. Any two rows agree in one column.
CLASS_FORMS = np.array([(a, b, (a + b) % 3, (a + 2 * b) % 3) for a in range(3) for b in range(3)])
PART_POSITIONS = {"crest": (0.0, -1.0), "wing": (1.0, 0.0), "tail": (-1.0, 0.0), "foot": (0.0, 1.0)}  # from the body
BODY_RADIUS = (15.0, 19.0)  # pixels
PART_RADIUS = (10.5, 12.5)


@dataclass(frozen=True, eq=False)
class Creatures:
    """Generated images and their ground truth."""

    images: NDArray[np.uint8]  # image height width channel
    labels: NDArray[np.int64]  # image: an index into CLASSES
    shown: NDArray[np.bool_]  # image part
    masks: NDArray[np.bool_]  # image part height width: every pixel that the part changed
    bare: NDArray[np.uint8]  # image height width channel: the creature without any part

    def __len__(self) -> int:
        return len(self.images)

    @property
    def evidence(self) -> NDArray[np.bool_]:
        """[image height width]: the pixels that say anything about the class."""
        return np.asarray(self.masks.any(1))

    def without(self, part: int) -> NDArray[np.uint8]:
        """The images without this part."""
        return np.where(self.masks[:, part, :, :, None], self.bare, self.images)

    def answers(self) -> FloatArray:
        """[image class]: the probability of each class given the parts that are shown."""
        forms = CLASS_FORMS[self.labels]  # image part
        possible = ((CLASS_FORMS[None] == forms[:, None]) | ~self.shown[:, None]).all(-1)  # image class
        return possible / possible.sum(-1, keepdims=True)


def generate(count: int, seed: int, *, parts: int | None = 2) -> Creatures:
    """`count` creatures with `parts` of their four parts; None: each part is shown or not by chance.

    Image i depends only on `seed`, i and `parts`.
    """
    if parts is not None:
        refuse_outside_range("parts", parts, 0, len(PARTS))
    drawn = generate_images(count, seed, partial(_draw_creature, parts=parts), 92, 9 if parts is None else parts)
    image, shown, masks = (np.uint8, (SIZE, SIZE, 3)), (np.bool_, (len(PARTS),)), (np.bool_, (len(PARTS), SIZE, SIZE))
    return Creatures(*stack_columns(drawn, image, (np.int64, ()), shown, masks, image))


def _draw_creature(
    rng: np.random.Generator, parts: int | None
) -> tuple[NDArray[np.uint8], int, NDArray[np.bool_], list[NDArray[np.bool_]], NDArray[np.uint8]]:
    label = int(rng.integers(len(CLASSES)))
    shown = rng.random(len(PARTS)) < 0.5
    if parts is not None:
        shown = np.isin(np.arange(len(PARTS)), rng.permutation(len(PARTS))[:parts])
    canvas = 60 + 0.5 * draw_background(rng)
    radius = rng.uniform(*BODY_RADIUS)
    reach = radius + 2 * PART_RADIUS[1]  # of the creature, from its centre
    centre = rng.uniform(reach, SIZE - reach, 2) if reach < SIZE / 2 else np.full(2, SIZE / 2) + rng.uniform(-2, 2, 2)
    blend(canvas, *cover_shape("circle", centre, radius), draw_colour(rng, canvas, centre))
    for _ in range(rng.integers(2, 5)):
        spot, _ = draw_blob(rng)
        offset = np.array(rng.uniform(-0.5, 0.5, 2) * radius + centre, dtype=int) - np.array(spot.shape[::-1]) // 2
        top, left = (int(np.clip(o, 0, SIZE - side)) for o, side in zip(offset[::-1], spot.shape, strict=True))
        blend(canvas, spot, (top, left), rng.uniform(0, 255, 3))
    bare = canvas.clip(0, 255).astype(np.uint8)
    masks = []
    for part, name in enumerate(PARTS):
        size = rng.uniform(*PART_RADIUS)
        position = centre + np.array(PART_POSITIONS[name]) * (radius + size - 1)
        coverage, corner = cover_shape(FORMS[CLASS_FORMS[label, part]], position, size)
        colour = draw_colour(rng, canvas, position)
        masks.append(blend(canvas, coverage, corner, colour) if shown[part] else np.zeros((SIZE, SIZE), np.bool_))
    image = np.where(np.any(masks, axis=0)[:, :, None], canvas.clip(0, 255).astype(np.uint8), bare)
    return image, label, shown, masks, bare


def draw_colour(rng: np.random.Generator, canvas: FloatArray, position: FloatArray) -> FloatArray:
    """A colour that differs from the one at this position of the canvas."""
    x, y = (int(np.clip(c, 0, SIZE - 1)) for c in position)
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - canvas[y, x]) > 120:
            return colour


def cover_shape(name: str, centre: FloatArray, radius: float) -> tuple[FloatArray, tuple[int, int]]:
    """How much of each pixel an upright shape covers, from nine samples per pixel, and the corner of its window."""
    x, y, corner = make_window(centre, radius, points=3)
    inside = SHAPE_TESTS[name](x / radius, -y / radius)
    height, width = inside.shape
    return inside.reshape(height // 3, 3, width // 3, 3).mean((1, 3)), corner
