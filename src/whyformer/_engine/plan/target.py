"""The target of a planned run: logits are computed only at the tokens at which the target reads them.

Most targets say where they are read before the model has run. So a target is first settled on logits that are not
there (`PlannedLogits`), which note the positions; the model computes its output at these positions alone; and then the
target is settled again, on `PickedLogits`, which stand for the whole output and hold these positions.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture.capture import RunRequest
from whyformer._engine.plan.run import PlanRun, Positions, find_output_embedding
from whyformer._engine.run.returned import map_tensors
from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.chosen_answer import ChosenAnswer, choose_terms
from whyformer._engine.targets.function_target import FunctionReading, explain_function, find_function
from whyformer._engine.targets.target import ClassReading, choose_target, expand_pair
from whyformer._engine.targets.target_kinds import settle_target
from whyformer._engine.targets.target_like import Settled, TargetKind, TargetLike
from whyformer._engine.targets.task import Task
from whyformer._engine.targets.terms import TermSum
from whyformer._model import EncodedBatch, Model
from whyformer.errors import WhyformerError


@dataclass
class PlannedLogits:
    """Stands for logits [batch token word] before the run, and notes where they are read."""

    shape: tuple[int, int, int]
    read: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = [set() for _ in range(self.shape[0])]

    def dim(self) -> int:
        return 3

    def size(self, axis: int) -> int:
        return self.shape[axis]

    def __getitem__(self, at: tuple[int, Any]) -> Tensor:
        row, position = at
        positions = list(position) if isinstance(position, list | tuple) else [int(position)]
        self.read[row].update(positions)
        made = torch.zeros(len(positions), self.shape[-1])
        return made if isinstance(position, list | tuple) else made[0]


@dataclass(frozen=True)
class PickedLogits:
    """Stands for logits [batch token word] of which only those at some positions were computed."""

    picked: Tensor  # [batch position word]
    positions: Positions
    length: int

    def dim(self) -> int:
        return 3

    def size(self, axis: int) -> int:
        return (len(self.positions), self.length, self.picked.size(-1))[axis]

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, tuple):
            return PickedRow(self, at)
        row, position = at
        if isinstance(position, list | tuple):
            return self.picked[row, [self.find(row, int(one)) for one in position]]
        return self.picked[row, self.find(row, int(position))]

    @cached_property
    def order(self) -> list[dict[int, int]]:
        """Of each example, the number of each position among those that were computed."""
        return [{position: number for number, position in enumerate(row)} for row in self.positions]

    def find(self, row: int, position: int) -> int:
        return self.order[row][position]


@dataclass(frozen=True)
class PickedRow:
    """One example of PickedLogits."""

    of: PickedLogits
    row: int

    def __getitem__(self, position: Any) -> Tensor:
        return self.of[self.row, position]


@dataclass(frozen=True, eq=False)
class PickedView(AnswerView):
    """What targets look at when the output is not whole."""

    @property
    def logits(self) -> Any:  # type: ignore[override]
        return self.task.output


# --- before the run --------------------------------------------------------------------------------------------------


def find_read_positions(
    model: Model, encoded: EncodedBatch, target: TargetLike, versus: TargetLike
) -> Positions | None:
    """The tokens at which the target reads the output; None if that is not known before the run."""
    if find_function(target, versus, encoded.batch) is not None:
        return None
    wanted, against = expand_pair(target, versus, encoded.batch)
    assert encoded.token_mask is not None
    if not any(isinstance(one, TargetKind) for one in (*wanted, *against)):
        return [[int(row.nonzero()[-1])] for row in encoded.token_mask]
    head = find_output_embedding(model.module)
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    planned = PlannedLogits((encoded.batch, encoded.token_mask.size(1), weight.size(0)))
    view = PickedView(model, encoded, None, Task("next token", planned))  # type: ignore[arg-type]
    try:
        for row, pair in enumerate(zip(wanted, against, strict=True)):
            note_terms(planned, view, row, pair)
    except (WhyformerError, TypeError, ValueError, AttributeError):  # the run itself will tell what is wrong
        return None
    return make_equally_many([sorted(read) for read in planned.read])


def note_terms(planned: PlannedLogits, view: AnswerView, row: int, pair: tuple[Any, Any]) -> None:
    first, other = pair
    settled: list[Settled] = [settle_target(first, view, row)]
    settled += [] if other is None else [settle_target(other, view, row)]
    for term in (term for one in settled for term in one.terms):
        if term.field or len(term.at) != 2:
            raise ValueError
        planned.read[row].add(term.at[0])


def make_equally_many(positions: Positions) -> Positions | None:
    """The positions of each example, the last one repeated where another example has more."""
    most = max(map(len, positions))
    return [row + row[-1:] * (most - len(row)) for row in positions] if all(positions) else None


# --- after it --------------------------------------------------------------------------------------------------------


def choose_planned_answer(request: RunRequest, run: PlanRun, positions: Positions | None) -> ChosenAnswer:
    """The explained answer of each example, as `choose_answer` finds it for a model that predicts the next token."""
    model, encoded, target, versus = request.model, request.encoded, request.target, request.versus
    run = widen_output(run)
    if (function := find_function(target, versus, encoded.batch)) is not None:
        answer, targets = explain_function(function, run.returned, encoded.batch)
        return ChosenAnswer(answer, targets, FunctionReading(function))
    wanted, against = expand_pair(target, versus, encoded.batch)
    if not any(isinstance(one, TargetKind) for one in (*wanted, *against)):
        explained, described = choose_target(model, encoded, run.output, target, versus)
        return ChosenAnswer(explained, described, ClassReading(model.module, described))
    is_picked = positions is not None and run.output.dim() == 3 and run.output.size(1) == len(positions[0])
    if positions is None or not is_picked:
        view = AnswerView(model, encoded, run.returned, Task("next token", run.output))
        return choose_terms(view, wanted, against)
    assert encoded.token_mask is not None
    logits = PickedLogits(run.output.detach(), positions, encoded.token_mask.size(1))
    view = PickedView(model, encoded, run.returned, Task("next token", logits))  # type: ignore[arg-type]
    return choose_terms(view, wanted, against, lambda function: locate_terms(function, logits))


def locate_terms(function: TermSum, logits: PickedLogits) -> TermSum:
    """The same sum, read from the output at the positions that were computed."""
    return replace(
        function,
        terms=tuple(
            tuple(replace(term, at=(logits.find(row, term.at[0]), *term.at[1:])) for term in terms)
            for row, terms in enumerate(function.terms)
        ),
    )


def widen_output(run: PlanRun) -> PlanRun:
    """The run with its output in float32 at least: sums over many tokens need the digits."""
    if run.output.element_size() >= 4:
        return run
    wide = run.output.float()
    return PlanRun(run.leaf, wide, map_tensors(run.returned, lambda tensor: wide if tensor is run.output else tensor))
