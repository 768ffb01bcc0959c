"""The order of the units of an example by their scores.

Ties are broken at random, per example, the same on every machine and in every batch: in reading order, a map that is
zero almost everywhere would lose the top of the image first. `ties="first"` is reading order, which released code gets
from `torch.topk` on a GPU. On a CPU, neither that function nor `numpy.argsort` has a fixed order of ties.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whyformer._plain.random_generator import make_generator

TieOrder = Literal["random", "first"]


def rank_units(
    scores: Tensor, real: Tensor, fingerprints: Sequence[int] | Tensor, *, seed: int = 0, ties: TieOrder = "random"
) -> Tensor:
    """[batch unit] long: 0 for the highest score, 1 for the next; units that are not real come last.

    ties: "random", or "first": the unit that comes first in the input.
    """
    found = torch.full(scores.shape, scores.shape[1], dtype=torch.long)
    for example, fingerprint in enumerate(fingerprints):
        units = real[example].nonzero()[:, 0]
        found[example, sort_units(scores[example], units, seed, int(fingerprint), ties)] = torch.arange(len(units))
    return found


def sort_units(scores: Tensor, units: Tensor, seed: int, fingerprint: int, ties: TieOrder) -> Tensor:
    """These units, highest score first."""
    falling = -scores[units].numpy()
    if ties == "first":
        return units[torch.from_numpy(np.argsort(falling, kind="stable"))]
    order = np.argsort(falling)  # not stable but four times faster, and correct without ties
    if len(order) > 1 and (np.diff(falling[order]) == 0).any():
        shuffled = torch.randperm(len(units), generator=make_generator(seed, fingerprint)).numpy()
        order = shuffled[np.argsort(falling[shuffled], kind="stable")]
    return units[torch.from_numpy(order)]


def to_unit_count(fraction: float, units: int, *, least: int = 0) -> int:
    """The number of units a fraction stands for: rounded down (but not by a rounding error), at least `least`."""
    return min(max(int(fraction * units + 1e-9), least), units)


def to_nearest_unit_count(fraction: float, units: int) -> int:
    """The nearest number of units, at least one if the fraction is > 0 and there are any units."""
    return min(max(int(fraction * units + 0.5 + 1e-9), int(fraction > 0)), units)
