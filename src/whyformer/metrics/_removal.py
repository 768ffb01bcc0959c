"""The model's answers when the highest or lowest-scored units are removed. Most faithfulness metrics use this.

All variants of a batch go through the model in one call of the probe, which splits them into chunks. Metrics that ask
for the same variants of one probe share the answers: AttCAT's AOPC and log-odds differ only in what they make of them.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from whyformer._engine import Answers, Probe
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError
from whyformer.metrics._maps import resize_map
from whyformer.metrics._ordering import TieOrder, rank_units
from whyformer.results.explanation import Explanation

TENTHS = tuple(k / 10 for k in range(1, 10))
MOST_REMEMBERED = 16  # answers of one probe, each to the variants of a whole batch
RemovalUnit = Literal["pixel", "patch"]


@dataclass(frozen=True)
class StepAnswers:
    """The model's answers to several variants of every example."""

    score: Tensor  # [batch step] float64: the explained logit
    probability: Tensor  # [batch step] float64
    logits: Tensor  # [batch step class] float64


@dataclass(frozen=True)
class RemovableUnits:
    """The units that can be removed from each example, and their scores: patches, tokens, or single pixels."""

    scores: Tensor  # [batch unit] float64
    real: Tensor  # [batch unit] bool
    shape: tuple[int, ...]  # of the units of one example, as the probe expects them: (unit,) or (height, width)

    @property
    def counts(self) -> list[int]:
        """The number of real units of each example."""
        return [int(count) for count in self.real.sum(1)]


def find_removable_units(explanation: Explanation, probe: Probe, *, per: RemovalUnit = "patch") -> RemovableUnits:
    """The units of a batch: tokens of a text; patches of an image, or its pixels with an enlarged map."""
    if len(explanation) != probe.batch:
        raise InputError(
            f"Got {len(explanation)} explanations for a probe with {probe.batch} examples. Give the same batch to both."
        )
    if per == "pixel" and probe.is_image:
        size = tuple(read_input_images(probe).shape[-2:])
        maps = torch.stack([resize_map(explanation, i, size).flatten() for i in range(len(explanation))])
        return RemovableUnits(maps, torch.ones(maps.shape, dtype=torch.bool), size)
    if explanation.scores.shape[1] != probe.units:
        raise InputError(
            f"The explanation has {explanation.scores.shape[1]} scores per example, but the model has {probe.units} "
            "removable patches or tokens: the model's patches are unknown. Remove pixels instead: per='pixel'."
        )
    return RemovableUnits(explanation.scores.double(), probe.real.cpu(), (probe.units,))


def rank_for_removal(units: RemovableUnits, probe: Probe, *, seed: int, ties: TieOrder, lowest: bool = False) -> Tensor:
    """[batch unit] long: 0 for the unit that is removed first."""
    scores = -units.scores if lowest else units.scores
    return rank_units(scores, units.real, probe.fingerprints, seed=seed, ties=ties)


def ask_without_units(
    explanation: Explanation,
    probe: Probe,
    fractions: Sequence[float],
    to_count: Callable[[float, int], int],
    *,
    fill: str | None,
    seed: int,
    ties: TieOrder,
    per: RemovalUnit = "patch",
    lowest: bool = False,
    keeps: bool = False,
) -> StepAnswers:
    """The model's answers without the highest-scored fractions of the units; NaN for an example without units.

    to_count: the number of units that a fraction of so many stands for.
    lowest: remove the lowest-scored first. keeps: keep only the first fractions instead of removing them.
    """
    units = find_removable_units(explanation, probe, per=per)
    rank = rank_for_removal(units, probe, seed=seed, ties=ties, lowest=lowest)
    counts = torch.tensor([[to_count(fraction, count) for fraction in fractions] for count in units.counts])
    keep = keep_all_but_first(rank, counts) ^ keeps
    answers = ask_variants(probe, keep, units.shape, fill=fill, seed=seed)
    set_undefined(answers, ~units.real.any(1))
    return answers


def read_input_images(probe: Probe) -> Tensor:
    """[batch channel height width], as the model takes them."""
    return probe.encoded.inputs[probe.encoded.main]


def ask_variants(probe: Probe, keep: Tensor, shape: Sequence[int], *, fill: str | None, seed: int = 0) -> StepAnswers:
    """The model's answers to variants: keep [batch step unit] bool, the units of each with the given shape.

    NaN if every token of a text would be deleted, since there is no answer to an empty input.
    """
    deletes = (fill or probe.fill) == "delete"
    empty = find_empty_variants(probe, keep) if deletes else torch.zeros(keep.shape[:2], dtype=torch.bool)
    answers = ask_once(probe, keep | empty[..., None], shape, fill, seed)
    set_undefined(answers, empty)
    return answers


_asked: "WeakKeyDictionary[Probe, dict[Hashable, StepAnswers]]" = WeakKeyDictionary()


def ask_once(probe: Probe, keep: Tensor, shape: Sequence[int], fill: str | None, seed: int) -> StepAnswers:
    """The model's answers to variants, from memory if this probe was asked for exactly these before."""
    remembered = _asked.setdefault(probe, {})
    variants = hashlib.sha256(keep.numpy().tobytes()).digest()
    key = (variants, tuple(keep.shape), tuple(shape), fill or probe.fill, seed)
    if key in remembered:
        with probe.refuse_changed_weights():
            return deepcopy(remembered[key])
    batch, steps = keep.shape[:2]
    of = torch.arange(batch).repeat_interleave(steps)
    answers = as_step_answers(probe.keep_only(keep.reshape(batch * steps, *shape), of, fill, seed=seed), batch)
    if len(remembered) >= MOST_REMEMBERED:
        del remembered[next(iter(remembered))]
    remembered[key] = deepcopy(answers)
    return answers


def set_undefined(answers: StepAnswers, where: Tensor) -> None:
    """Make these answers NaN: where is [batch] or [batch step] bool."""
    for part in (answers.score, answers.probability, answers.logits):
        part[where] = float("nan")


def find_empty_variants(probe: Probe, keep: Tensor) -> Tensor:
    """[batch step] bool: True if no token would be left, not even a special one."""
    rows = [tokens for tokens in probe.tokens if isinstance(tokens, Pieces)]
    always = ~torch.tensor([tokens.padding for tokens in rows]) & ~probe.real
    return ~((keep & probe.real[:, None]) | always[:, None]).any(-1)


def as_step_answers(answers: Answers, batch: int) -> StepAnswers:
    """Answers to [batch x step] rows, as [batch step]."""
    parts = (part.detach().cpu().double() for part in (answers.score, answers.probability, answers.logits))
    return StepAnswers(*(part.reshape(batch, -1, *part.shape[1:]) for part in parts))


def keep_all_but_first(rank: Tensor, counts: Tensor) -> Tensor:
    """[batch step unit] bool, True where a unit is kept: the first counts[batch step] units are removed."""
    return rank[:, None, :] >= counts[:, :, None]


def trapezoid_area(curve: Tensor, at: Sequence[float]) -> Tensor:
    """The trapezoid rule over [batch step]."""
    return torch.trapezoid(curve, torch.tensor(at, dtype=torch.float64), dim=-1)


def choose_fill(probe: Probe, fill: str | None, *, image: str | None = None, text: str | None = None) -> str | None:
    """The fill that was asked for, else the metric's own for images or texts; None leaves it to the probe."""
    return fill or (image if probe.is_image else text)
