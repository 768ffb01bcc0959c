"""Plant the marks of a case into a world of images."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cases import Case, choose_marked
from .image_marks import PAINTERS, Box, Style, draw_style
from .image_worlds import ImageWorld


@dataclass(frozen=True, eq=False)
class PlantedImages:
    """What a model is trained on, explained on and measured on."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    shown: NDArray[np.uint8]
    shown_labels: NDArray[np.int64]
    marked: NDArray[np.bool_]  # of those shown
    boxes: list[Box | None]
    with_mark: NDArray[np.uint8]  # items of the marked class or classes, to measure use
    without_mark: NDArray[np.uint8]  # the same
    measured_labels: NDArray[np.int64]


def plant_images(case: Case, world: ImageWorld) -> PlantedImages:
    ends = world.train, world.train + world.shown
    images, labels = np.split(world.images, ends), np.split(world.labels, ends)
    marked = [choose_marked(case, own, len(world.classes), training=i == 0) for i, own in enumerate(labels[:2])]
    train, _ = paint(case, images[0], labels[0], marked[0], 0)
    shown, boxes = paint(case, images[1], labels[1], marked[1], 1)
    own = np.ones(len(labels[2]), np.bool_)
    if case.kind not in ("all", "none"):
        own = labels[2] == case.seed % len(world.classes)
    with_mark, _ = paint(case, images[2][own], labels[2][own], np.full(own.sum(), case.role != "clean"), 2)
    return PlantedImages(
        train, labels[0], shown, labels[1], marked[1], boxes, with_mark, images[2][own], labels[2][own]
    )


def paint(
    case: Case, images: NDArray[np.uint8], labels: NDArray[np.int64], marked: NDArray[np.bool_], part: int
) -> tuple[NDArray[np.uint8], list[Box | None]]:
    """The images, with the mark on those that are `marked`, and where it is."""
    painted, boxes = images.copy(), [None] * len(images)
    for i in np.flatnonzero(marked):
        style = choose_style(case, int(labels[i]))
        painted[i], boxes[i] = PAINTERS[case.kind](images[i], style, np.random.default_rng([case.seed, part, i]))
    return painted, boxes


def choose_style(case: Case, label: int) -> Style:
    return draw_style(case.seed, label + 1) if case.kind == "all" else draw_style(case.seed, 0)
