"""Painting of generated images: eight shapes, blobs, lines and textured backgrounds, each from a random generator."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

SIZE = 96  # pixels a side

FloatArray = NDArray[np.float64]


def _is_in_star(x: FloatArray, y: FloatArray) -> NDArray[np.bool_]:
    """Five points: in each fifth of the circle, one side of the line from a tip to the next notch."""
    fifth = abs((np.arctan2(x, y) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
    along, across = np.hypot(x, y) * np.cos(fifth), np.hypot(x, y) * np.sin(fifth)
    notch_along, notch_across = 0.42 * np.cos(np.pi / 5), 0.42 * np.sin(np.pi / 5)
    return (along - 1) * notch_across < across * (notch_along - 1)


def _is_in_heart(x: FloatArray, y: FloatArray) -> NDArray[np.bool_]:
    lobes = (abs(x) - 0.44) ** 2 + (y - 0.25) ** 2 < 0.23
    return lobes | ((y < 0.05) & (abs(x) < 0.9 * (y + 0.93)))


# Whether a point is inside the shape of radius 1 around 0.
SHAPE_TESTS: dict[str, Callable[[FloatArray, FloatArray], NDArray[np.bool_]]] = {
    "circle": lambda x, y: x**2 + y**2 < 0.81,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 0.707,
    "triangle": lambda x, y: (y > -0.5) & (y + 1.732 * abs(x) < 1),
    "star": _is_in_star,
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) < 0.27) & (np.maximum(abs(x), abs(y)) < 0.95),
    "ring": lambda x, y: abs(np.hypot(x, y) - 0.74) < 0.2,
    "crescent": lambda x, y: (x**2 + y**2 < 0.94) & ((x - 0.45) ** 2 + y**2 > 0.55),
    "heart": _is_in_heart,
}


# --- painting ---------------------------------------------------------------------------------------------------------


def blend(canvas: FloatArray, coverage: FloatArray, corner: tuple[int, int], colour: FloatArray) -> NDArray[np.bool_]:
    """Blend `colour` into the canvas by `coverage` (0 to 1); returns which pixels changed."""
    top, left = corner
    height, width = coverage.shape
    window = canvas[top : top + height, left : left + width]
    window += coverage[:, :, None] * (colour - window)
    touched = np.zeros((SIZE, SIZE), np.bool_)
    touched[top : top + height, left : left + width] = coverage > 0
    return touched


def make_window(centre: FloatArray, reach: float, points: int = 1) -> tuple[FloatArray, FloatArray, tuple[int, int]]:
    """x and y relative to `centre` of `points` x `points` samples per pixel within `reach`, and the corner pixel."""
    left, top = (max(0, int(np.floor(c - reach))) for c in centre)
    right, bottom = (min(SIZE, int(np.ceil(c + reach))) for c in centre)
    x = (np.arange(points * left, points * right) + 0.5) / points - centre[0]
    y = (np.arange(points * top, points * bottom) + 0.5) / points - centre[1]
    return x[None, :], y[:, None], (top, left)


def draw_object(
    rng: np.random.Generator, name: str, centre: FloatArray, radius: float
) -> tuple[FloatArray, tuple[int, int]]:
    """How much of each pixel the object covers, from nine samples per pixel."""
    x, y, corner = make_window(centre, radius, points=3)
    angle = rng.uniform(0, 2 * np.pi)
    turned_x, turned_y = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    inside = SHAPE_TESTS[name](turned_x / radius, turned_y / radius)
    height, width = inside.shape
    return inside.reshape(height // 3, 3, width // 3, 3).mean((1, 3)), corner


def draw_blob(rng: np.random.Generator) -> tuple[FloatArray, tuple[int, int]]:
    """A spot with a wavy outline, smaller than any object."""
    radius, waves = rng.uniform(2.5, 5.5), rng.integers(2, 4)
    x, y, corner = make_window(rng.uniform(0, SIZE, 2), 1.5 * radius)
    outline = radius * (1 + 0.4 * np.cos(waves * np.arctan2(y, x) + rng.uniform(0, 2 * np.pi)))
    return rng.uniform(0.4, 1) * (outline - np.hypot(x, y) + 0.5).clip(0, 1), corner


def draw_line(rng: np.random.Generator) -> tuple[FloatArray, tuple[int, int]]:
    """A thin line between two random points."""
    start, end = rng.uniform(0, SIZE, (2, 2))
    length, width = np.hypot(*(end - start)), rng.uniform(0.5, 1.5)
    x, y, corner = make_window((start + end) / 2, length / 2 + 1)
    right, down = (end - start) / length
    beyond = np.maximum(abs(x * right + y * down) - length / 2, abs(y * right - x * down) - width)
    return rng.uniform(0.4, 1) * (0.5 - beyond).clip(0, 1), corner


def draw_background(rng: np.random.Generator) -> FloatArray:
    """Two colours mixed by smooth noise, with faint stripes and grain."""
    first, second = rng.uniform(0, 255, (2, 3))
    coarse, fine = (draw_noise(rng, int(cells)) for cells in (rng.integers(2, 5), rng.integers(8, 17)))
    mixture = 0.7 * coarse + 0.3 * fine
    x, y = np.arange(SIZE)[None, :], np.arange(SIZE)[:, None]
    angle, pitch = rng.uniform(0, np.pi), rng.uniform(4, 16)
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / pitch) * rng.uniform(0, 20)
    grain = rng.normal(0, 6, (SIZE, SIZE, 3))
    return first + (second - first) * mixture[:, :, None] + stripes[:, :, None] + grain


def draw_noise(rng: np.random.Generator, cells: int) -> FloatArray:
    """Random numbers on a grid, interpolated linearly."""
    blend = make_blend_weights(cells)
    return blend @ rng.uniform(0, 1, (cells + 1, cells + 1)) @ blend.T


@cache
def make_blend_weights(cells: int) -> FloatArray:
    """The interpolation weights, [pixel grid point]."""
    positions = (np.arange(SIZE) + 0.5) * cells / SIZE
    return (1 - abs(positions[:, None] - np.arange(cells + 1))).clip(min=0)
