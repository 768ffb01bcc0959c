"""The order of the units of an example by their scores, and what an explanation has scores for.

Equal scores are put in an order drawn for each example, the same on every machine and in every batch: in the order they
stand, a map that is zero almost everywhere would lose the top of the picture first.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._plain.random_generator import make_generator
from whyformer._plain.tokens import Grid, Pieces
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation


def rank_units(scores: Tensor, real: Tensor, marks: Sequence[int] | Tensor, *, seed: int = 0) -> Tensor:
    """[batch unit] long: 0 for the highest score, 1 for the next; units that are not real come after all others."""
    found = torch.full(scores.shape, scores.shape[1], dtype=torch.long)
    for example, mark in enumerate(marks):
        units = real[example].nonzero()[:, 0]
        found[example, sort_units(scores[example], units, seed, int(mark))] = torch.arange(len(units))
    return found


def sort_units(scores: Tensor, units: Tensor, seed: int, mark: int) -> Tensor:
    """These units, the highest score first."""
    falling = -scores[units].numpy()
    order = np.argsort(falling)  # not stable but four times faster, and right where all scores differ
    if len(order) > 1 and (np.diff(falling[order]) == 0).any():
        shuffled = torch.randperm(len(units), generator=make_generator(seed, mark)).numpy()
        order = shuffled[np.argsort(falling[shuffled], kind="stable")]
    return units[torch.from_numpy(order)]


def to_unit_count(fraction: float, units: int, *, least: int = 0) -> int:
    """How many of the units a fraction is: rounded down (never by a rounding error), or at least so many."""
    return min(max(int(fraction * units + 1e-9), least), units)


def to_nearest_unit_count(fraction: float, units: int) -> int:
    """The nearest whole number of units, one at least if the fraction is not 0 and there is a unit at all."""
    return min(max(int(fraction * units + 0.5 + 1e-9), int(fraction > 0)), units)


def find_content_units(explanation: Explanation) -> Tensor:
    """[batch unit] bool: all patches of a picture; of a text the tokens that are neither special nor padding."""
    rows = [
        [not s and not p for s, p in zip(tokens.special, tokens.padding, strict=True)]
        if isinstance(tokens, Pieces)
        else [True] * len(tokens)
        for tokens in explanation.tokens
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(explanation.scores.shape)


def resize_map(explanation: Explanation, example: int, size: Sequence[int]) -> Tensor:
    """One map in float64 at a size: the pixels' own where they have it, else the patches enlarged (bilinear)."""
    grid = explanation.tokens[example]
    if not isinstance(grid, Grid):
        raise InputError("A text has no map of rows and columns, so it cannot be held against a picture's pixels.")
    if explanation.pixels is not None:
        pixels = explanation.pixels[example].double()
        if tuple(pixels.shape) == tuple(size):
            return pixels
        raise InputError(
            f"A map of {' x '.join(map(str, pixels.shape))} pixels does not fit {' x '.join(map(str, size))} pixels. "
            "Give masks of the size of the model's input."
        )
    patches = explanation.map(example).double()[None, None]
    height, width = grid.covers or tuple(size)
    large = F.interpolate(patches, size=(height, width), mode="bilinear", align_corners=False)
    return F.pad(large, (0, size[1] - width, 0, size[0] - height), mode="replicate")[0, 0]
