"""Relevance maps as shares: the positive scores of an image, divided by their sum, on one grid for all images.

Negative scores speak against the explained class; where evidence *for* the class is sought, they count as zero.
"""

from functools import cache

import numpy as np


def take_positive_shares(scores: np.ndarray) -> np.ndarray | None:
    """The share of each token in the sum of positive scores; None if no score is positive."""
    positive = np.asarray(scores, dtype=np.float64).clip(min=0.0)
    total = positive.sum()
    return positive / total if total > 0 and np.isfinite(total) else None


def resample_map(shares: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """A map [row column] on another grid: each patch is split by area, so that the sum stays the same."""
    down, across = (make_area_weights(old, new) for old, new in zip(shares.shape, grid, strict=True))
    return down @ shares @ across.T


@cache
def make_area_weights(old: int, new: int) -> np.ndarray:
    """[new old]: which part of each old cell falls into each new one."""
    starts, ends = np.arange(new)[:, None] * old / new, np.arange(1, new + 1)[:, None] * old / new
    cells = np.arange(old)[None]
    return (np.minimum(ends, cells + 1) - np.maximum(starts, cells)).clip(min=0.0)


def mark_border(grid: tuple[int, int]) -> np.ndarray:
    """[row column]: True for the outermost patches."""
    border = np.ones(grid, dtype=bool)
    border[1:-1, 1:-1] = False
    return border


def find_core(shares: np.ndarray, part: float) -> np.ndarray:
    """[...] of bool: the fewest patches that hold this part of the map, the strongest first."""
    flat = np.round(shares.ravel(), 12)
    order = np.argsort(-flat, kind="stable")
    held = np.cumsum(flat[order])
    count = int(np.searchsorted(held, part * held[-1] - 1e-12)) + 1
    core = np.zeros(flat.size, dtype=bool)
    core[order[:count]] = True
    return core.reshape(shares.shape)
