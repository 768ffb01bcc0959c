"""The target of a lean run: the logits are computed only at the tokens at which the target reads them."""

from collections.abc import Sequence
from typing import Any

from whyformer._engine.answer_view import AnswerView
from whyformer._engine.chosen_answer import ChosenAnswer, choose_terms
from whyformer._engine.function_target import FunctionReading, explain_function, find_function
from whyformer._engine.lean_run import LeanRun
from whyformer._engine.reading import ClassReading
from whyformer._engine.target import choose_target, expand_per_example, find_last_tokens
from whyformer._engine.target_kinds import TargetKind
from whyformer._engine.task import Task
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model

Places = Sequence[Sequence[int]]


def find_read_places(encoded: EncodedBatch, target: Any, versus: Any) -> Places | None:
    """Of each example, the tokens at which the target reads the output; None: that is not known before the run."""
    given = [one for wanted in (target, versus) for one in (wanted if isinstance(wanted, list | tuple) else [wanted])]
    if any(callable(one) or isinstance(one, TargetKind) for one in given):
        return None
    assert encoded.token_mask is not None
    return [[int(row.nonzero()[-1])] for row in encoded.token_mask]


def choose_lean_answer(
    model: Model, encoded: EncodedBatch, run: LeanRun, places: Places | None, target: Any, versus: Any
) -> ChosenAnswer:
    """The explained answer of each example, as `choose_answer` finds it for a model that predicts the next token."""
    if (function := find_function(target, versus, encoded.batch)) is not None:
        answer, targets = explain_function(function, run.returned, encoded.batch)
        return ChosenAnswer(answer, targets, FunctionReading(function))
    wanted, against = (
        expand_per_example(one, encoded.batch, what) for one, what in ((target, "target"), (versus, "versus"))
    )
    if not any(isinstance(one, TargetKind) for one in (*wanted, *against)):
        explained, described = choose_target(model, encoded, run.output, target, versus)
        return ChosenAnswer(explained, described, ClassReading(model.module, described))
    return choose_terms(AnswerView(model, encoded, run.returned, Task("next token", run.output)), wanted, against)
