"""From what a model returned to what is explained: the task, the target of each example, and how its score is read.

Readout: how much of the answer the model reads at each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.layout.layout import Layout, find_representation, to_canonical_axes
from whyformer._engine.run.forward import Run
from whyformer._engine.run.output_scale import note_scale
from whyformer._engine.targets.answer_view import AnswerView
from whyformer._engine.targets.function_target import (
    ExplainedScore,
    FunctionReading,
    ScoreFunction,
    explain_function,
    find_function,
)
from whyformer._engine.targets.representation import make_projection
from whyformer._engine.targets.target import (
    ClassReading,
    Reading,
    Target,
    choose_representation,
    choose_target,
    expand_per_example,
)
from whyformer._engine.targets.target_kinds import Representation, predicts_term, settle_target
from whyformer._engine.targets.target_like import OneTarget, Settled, TargetKind, TargetLike
from whyformer._engine.targets.task import find_task
from whyformer._engine.targets.terms import TermSum
from whyformer._engine.tracing.provenance import Trace, trace_of
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer.errors import InputError, TargetError, UnsupportedModel

PLAIN_TASKS = ("class", "next token")


class ChosenAnswer(NamedTuple):
    """What is explained, and how it is read from the runs of a probe."""

    answer: ExplainedScore
    targets: tuple[Target, ...]
    reading: Reading
    notes: tuple[str, ...] = ()

    @property
    def function(self) -> ScoreFunction | None:
        """The target as a function of the output, if it is no plain class."""
        return self.reading.function if isinstance(self.reading, FunctionReading) else None


def choose_answer(
    model: Model,
    encoded: EncodedBatch,
    run: Run,
    layout: Layout,
    target: TargetLike,
    versus: TargetLike,
    *,
    needs_score: bool,
) -> ChosenAnswer:
    """The explained answer of each example.

    needs_score: something depends on the score itself, so a representation needs one too.
    """
    if (function := find_function(target, versus, encoded.batch)) is not None:
        answer, targets = explain_function(function, run.returned, encoded.batch)
        return ChosenAnswer(answer, targets, FunctionReading(function))
    task = find_task(model, encoded, run.returned, lambda: is_causal(run))
    if task.kind == "representation":
        target, versus = drop_representation(target), drop_representation(versus)
        states, trace, note = pool_states(model, run, layout)
        explained, targets = choose_representation(model, states, trace, target, versus)
        if not needs_score:  # only where it is read
            return ChosenAnswer(explained, targets, ClassReading(model.module, targets), (note,) if note else ())
        projection, note = make_projection(model, encoded, run, layout)
        answer, described = explain_function(projection, run.returned, encoded.batch)
        targets = tuple(replace(one, spec=str(Representation())) for one in described)
        return ChosenAnswer(answer, targets, FunctionReading(projection), (note,))
    wanted, against = (
        expand_per_example(one, encoded.batch, what) for one, what in ((target, "target"), (versus, "versus"))
    )
    if task.kind in PLAIN_TASKS and not any(isinstance(one, TargetKind) for one in (*wanted, *against)):
        explained, targets = choose_target(model, encoded, task.output, target, versus)
        if not bool(explained.score.isfinite().all()):
            run.refuse_non_finite()
        return ChosenAnswer(explained, targets, ClassReading(model.module, targets), note_scale(unwrap(model.module)))
    chosen = choose_terms(AnswerView(model, encoded, run.returned, task), wanted, against)
    return chosen._replace(notes=(*chosen.notes, *note_scale(unwrap(model.module))))


def is_causal(run: Run) -> bool:
    """Whether in some layer no token attends to a later one; one that an intervention changed may be another.

    A single token says nothing. It is read as the beginning of a text, which a language model continues.
    """
    if not run.mode.sites:
        return not run.looks_ahead
    square = [site for site in run.mode.sites if site.output.size(-2) == site.value.size(-2)]
    if all(site.value.size(-2) == 1 for site in square):
        return True
    return any(not site.looks_ahead() for site in reversed(square))


def choose_terms(
    view: AnswerView,
    wanted: Sequence[OneTarget],
    against: Sequence[OneTarget],
    locate: Callable[[TermSum], TermSum] | None = None,
) -> ChosenAnswer:
    """The answer that is a sum of numbers of the output, for targets of any kind.

    locate: where these numbers are in what was returned, if not all of the output was computed.
    """
    settled = [settle_target(one, view, row) for row, one in enumerate(wanted)]
    others = [None if one is None else settle_target(one, view, row) for row, one in enumerate(against)]
    terms = []
    for one, other in zip(settled, others, strict=True):
        if other is not None and one.terms == other.terms:
            raise TargetError(f"target and versus are both {one.label}. Choose two different ones.")
        terms.append((*one.terms, *(term.multiply(-1) for term in (other.terms if other is not None else ()))))
    function = TermSum(view.model.module, tuple(terms))
    answer, described = explain_function(locate(function) if locate else function, view.returned, len(terms))
    targets = tuple(
        describe_settled(view, row, one, other, described[row].score)
        for row, (one, other) in enumerate(zip(settled, others, strict=True))
    )
    notes = tuple(dict.fromkeys(one.note for one in settled if one.note))
    return ChosenAnswer(answer, targets, FunctionReading(function), notes)


def describe_settled(view: AnswerView, row: int, one: Settled, other: Settled | None, score: float) -> Target:
    predicted, probability = True, None
    if len(one.terms) == 1 and one.terms[0].weight == 1 and not one.terms[0].field:
        predicted, probability = predicts_term(view, row, one.terms[0])
    several = view.task.kind == "class" and view.names.is_multi_label
    described = Target(-1, one.label, score, probability, predicted, spec=str(one.fixed), is_multi_label=several)
    if other is None:
        return described
    return replace(described, versus=-1, versus_label=other.label, versus_spec=str(other.fixed))


# --- models without a head --------------------------------------------------------------------------------------------


def drop_representation(wanted: TargetLike) -> TargetLike:
    """None where the representation is asked for by name: it is the only thing to explain."""
    if isinstance(wanted, list | tuple):
        return [None if isinstance(one, Representation) else one for one in wanted]
    return None if isinstance(wanted, Representation) else wanted


def pool_states(model: Model, run: Run, layout: Layout) -> tuple[Tensor, Trace, str]:
    """[batch channel]: the representation, where it is read, and a note."""
    output = run.output
    if output.dim() != 3:
        return output, trace_of(output), ""
    weights, note = find_representation(model, run, layout)
    states = to_canonical_axes(output, trace_of(output))
    if states.shape[:2] != weights.shape:
        raise UnsupportedModel(
            f"The model returns a tensor of shape {list(output.shape)}, which is not one state for each of its "
            f"{weights.size(1)} tokens in a batch of {weights.size(0)}. Open the model with its head, or pass a "
            "function of what the model returns as target."
        )
    pooled = torch.einsum("bt,btc->bc", weights.to(states), states)
    return pooled, Trace(read=weights), note


# --- readout ----------------------------------------------------------------------------------------------------------


@runtime_checkable
class ReadsTokens(Protocol):
    """A module that reads each of its classes at certain tokens."""

    def list_read_tokens(self, index: int) -> Sequence[int]: ...


def compute_readout(
    model: Model, run: Run, layout: Layout, answer: ExplainedScore, targets: Sequence[Target]
) -> Tensor:
    """How much of the answer the model's pooling reads at each token: [batch token]."""
    mask = layout.mask
    if model.readout is not None:
        weights: Tensor | None = model.readout_weights(mask)
    elif isinstance(model.module, ReadsTokens):
        places = torch.tensor([model.module.list_read_tokens(target.index) for target in targets])
        weights = F.one_hot(places, layout.length).double().mean(1)
    else:
        weights = answer.compute_pooling_weights(mask.size(0), layout.length, run.mode.follower.numbers)
    if weights is None or weights.shape != mask.shape:
        raise UnsupportedModel(
            "At which tokens the answer is read is not known. Pass it when opening the model: "
            'readout="first", "last", "mean" or the index of a token.'
        )
    weights = weights.to(mask.device, model.dtype) * mask
    total = weights.sum(-1, keepdim=True)
    if not bool(total.all()):
        which = int((total[:, 0] == 0).nonzero()[0])
        raise InputError(
            f"The answer for example {which} is read at a padding token: this model reads a fixed position, such as "
            "the first token. Pad on the other side."
        )
    return weights / total
