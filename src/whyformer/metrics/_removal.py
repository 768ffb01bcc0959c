"""Removal: the model's answers when the highest or lowest scored units are taken out. Most of faithfulness is this.

All variants of a batch go through the model in one call of the probe, which cuts them into chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from whyformer._engine.probe import Answers, Probe
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, MetricError
from whyformer.metrics._ordering import rank_units, resize_map
from whyformer.results.explanation import Explanation

TENTHS = tuple(k / 10 for k in range(1, 10))
RemovalUnit = Literal["pixel", "patch"]


@dataclass(frozen=True)
class StepAnswers:
    """The model's answers to a few variants of every example."""

    score: Tensor  # [batch step] float64: the explained logit
    probability: Tensor  # [batch step] float64
    logits: Tensor  # [batch step class] float64


@dataclass(frozen=True)
class RemovableUnits:
    """What can be taken out of every example, and its scores: patches, tokens, or single pixels."""

    scores: Tensor  # [batch unit] float64
    real: Tensor  # [batch unit] bool
    shape: tuple[int, ...]  # of the units of one example, as the probe wants them: (unit,) or (height, width)

    @property
    def counts(self) -> list[int]:
        """How many real units each example has."""
        return [int(count) for count in self.real.sum(1)]


def find_units(explanation: Explanation, probe: Probe, *, per: RemovalUnit = "patch") -> RemovableUnits:
    """The units of a batch: tokens of a text; patches of a picture, or its pixels with an enlarged map."""
    if per not in ("pixel", "patch"):
        raise MetricError(f"per={per!r} is not what can be removed. There are: 'pixel', 'patch'.")
    if len(explanation) != probe.batch:
        raise InputError(f"{len(explanation)} explanations for a probe of {probe.batch} examples. Give the same batch.")
    if per == "pixel" and probe.is_image:
        size = tuple(read_input_images(probe).shape[-2:])
        maps = torch.stack([resize_map(explanation, i, size).flatten() for i in range(len(explanation))])
        return RemovableUnits(maps, torch.ones(maps.shape, dtype=torch.bool), size)
    if explanation.scores.shape[1] != probe.units:
        raise InputError(
            f"The explanation has {explanation.scores.shape[1]} scores an example, the model {probe.units} patches or "
            "tokens that can be removed: the model's patches are not known. Remove pixels: per='pixel'."
        )
    return RemovableUnits(explanation.scores.double(), probe.real.cpu(), (probe.units,))


def rank_for_removal(found: RemovableUnits, probe: Probe, *, seed: int, lowest: bool = False) -> Tensor:
    """[batch unit] long: 0 for what goes first."""
    scores = -found.scores if lowest else found.scores
    return rank_units(scores, found.real, probe.fingerprints, seed=seed)


def read_input_images(probe: Probe) -> Tensor:
    """[batch channel height width] as the model takes them."""
    return probe.encoded.inputs[probe.encoded.main]


def ask_variants(probe: Probe, keep: Tensor, shape: Sequence[int], *, fill: str | None, seed: int = 0) -> StepAnswers:
    """What the model says to variants: keep [batch step unit] bool, the units of each of the shape given.

    NaN where every token of a text would be deleted: there is no answer to no input.
    """
    batch, steps = keep.shape[:2]
    empty = (
        find_empty_variants(probe, keep)
        if (fill or probe.fill) == "delete"
        else torch.zeros(batch, steps, dtype=torch.bool)
    )
    of = torch.arange(batch).repeat_interleave(steps)
    rows = (keep | empty[..., None]).reshape(batch * steps, *shape)
    found = as_step_answers(probe.keep_only(rows, of, fill, seed=seed), batch)
    for part in (found.score, found.probability, found.logits):
        part[empty] = float("nan")
    return found


def find_empty_variants(probe: Probe, keep: Tensor) -> Tensor:
    """[batch step] bool: no token would be left, not even a special one."""
    rows = [one for one in probe.tokens if isinstance(one, Pieces)]
    always = ~torch.tensor([one.padding for one in rows]) & ~probe.real
    return ~((keep & probe.real[:, None]) | always[:, None]).any(-1)


def as_step_answers(found: Answers, batch: int) -> StepAnswers:
    """Answers to [batch x step] rows, as [batch step]."""
    parts = (part.detach().cpu().double() for part in (found.score, found.probability, found.logits))
    score, probability, logits = (part.reshape(batch, -1, *part.shape[1:]) for part in parts)
    return StepAnswers(score, probability, logits)


def keep_all_but_first(place: Tensor, counts: Tensor) -> Tensor:
    """[batch step unit] bool, True where a unit stays: the first counts[batch step] units are taken out."""
    return place[:, None, :] >= counts[:, :, None]


def keep_only_first(place: Tensor, counts: Tensor) -> Tensor:
    """[batch step unit] bool, True where a unit stays: the first counts[batch step] units, and nothing else real."""
    return place[:, None, :] < counts[:, :, None]


def trapezoid_area(curve: Tensor, at: Sequence[float]) -> Tensor:
    """The trapezoid rule over [batch step]."""
    return torch.trapezoid(curve, torch.tensor(at, dtype=torch.float64), dim=-1)


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """Fractions that rise from 0 to 1."""
    found = tuple(float(f) for f in fractions)
    if not found or any(not 0 <= f <= 1 for f in found) or any(b <= a for a, b in pairwise(found)):
        raise MetricError(f"Fractions rise from 0 to 1, such as (0.1, 0.5); these do not: {fractions}.")
    return found
