"""The plain target: the logit of a class or of the next token, or the difference of two logits (`versus`).

Other targets are in target_kinds.py, functions of the output in function_target.py. A model without a head has no
logits: its representation is explained (representation.py).

How the explained score is read from what a model returned, once the target is fixed.

The same reading is used for the explained run and for every variant of it that a probe runs.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, SupportsIndex, TypeAlias

import torch
from torch import Tensor, nn

from whyformer._engine.run.output_scale import scale_of
from whyformer._engine.run.returned import Returned, find_output
from whyformer._engine.targets.target_like import OneTarget, TargetLike
from whyformer._engine.tracing.provenance import Trace, compute_pooling_weights, trace_of
from whyformer._engine.tracing.recording import pause_recording
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.small_table import make_card
from whyformer.errors import TargetError, UnsupportedModel, suggest_nearest

REPRESENTATION = "the representation"
VALUE = "the value"  # that a regression without labels predicts
CONSIDERED = 3  # other classes that are named
LEAST_CONSIDERED = 0.001  # their probability
Considered: TypeAlias = tuple[tuple[str, float], ...]  # classes or tokens with their probabilities


@dataclass(frozen=True, repr=False)
class Target:
    """The explained output of one example."""

    index: int  # -1 for a target that is no plain class or next token
    label: str
    score: float  # the logit, or the difference of two logits when there is a `versus`
    # Softmax over the classes (or the vocabulary); sigmoid for multi-label models; None for a regression.
    probability: float | None = None
    predicted: bool = True  # the model predicts this class or token
    versus: int | None = None
    versus_label: str | None = None
    position: int | None = None  # language models: the position after which the next token is explained
    spec: str | None = None  # a target that is no plain class, as text (see targets.parse)
    versus_spec: str | None = None
    is_multi_label: bool = False  # each label is an answer of its own: `predicted` if its probability is above one half
    considered: Considered = field(default=(), compare=False)  # the likeliest other classes or tokens

    @property
    def is_value(self) -> bool:
        """Whether this is a number that a regression predicts."""
        return self.probability is None and self.position is None and (self.index >= 0 or is_value_text(self.spec))

    def __repr__(self) -> str:
        against = "" if self.versus_label is None else f" and not {self.versus_label!r}"
        share = "" if self.probability is None else f"{self.probability:.1%}, "
        other = "" if self.predicted else f", {self.contradiction}"
        return f"<Target {self.label!r}{against}: {share}score {self.score:.4g}{other}>"

    @property
    def contradiction(self) -> str:
        """Why a target that is not `predicted` is none."""
        return "below 50%" if self.is_multi_label else "not the prediction"

    def _repr_html_(self) -> str:
        """A small card for notebooks."""
        facts = {
            "instead of": self.versus_label,
            "probability": None if self.probability is None else f"{self.probability:.1%}",
            "score": f"{self.score:.4g}",
            "predicted": "yes" if self.predicted else "no",
            "after token": self.position,
        }
        return make_card(f"Target {self.label!r}", facts.items())


@dataclass(frozen=True)
class ExplainedAnswer:
    """The explained logit of each example, minus that of `versus` if there is one; still part of the autograd graph."""

    target: Tensor  # [batch]
    versus: Tensor | None  # [batch], zero for examples without one
    trace: Trace  # the tokens at which the logits are read
    shape: torch.Size  # of the logits

    @property
    def score(self) -> Tensor:
        return self.target if self.versus is None else self.target - self.versus

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors at which a backward pass starts."""
        return (self.score,)

    def start_gradient(self) -> Tensor:
        return self.score

    def start_relevance(self, sends: str) -> tuple[Tensor, Tensor | None]:
        """What a relevance pass starts from, and what is propagated after it and subtracted."""
        return self.target, self.versus

    def compute_pooling_weights(self, samples: int, tokens: int, numbers: TokenNumbers | None = None) -> Tensor | None:
        """[samples tokens]: how much of the answer is read at each token."""
        return compute_pooling_weights(self.trace, self.shape, samples, tokens, numbers)


def choose_target(
    model: Model, encoded: EncodedBatch, output: Tensor, target: TargetLike, versus: TargetLike
) -> tuple[ExplainedAnswer, tuple[Target, ...]]:
    """The explained logits, still part of the autograd graph, and the target of each example."""
    answers, positions, trace = read_logits(encoded, output)
    batch, classes = answers.shape
    names = TargetNames(model, classes, is_language=positions is not None)
    wanted, against = find_indices(names, target, versus, batch)
    predicted = answers.argmax(-1).tolist()
    indices = [predicted[i] if w is None else w for i, w in enumerate(wanted)]
    if versus is not None:
        refuse_same_targets(names, indices, against)
    answer = ExplainedAnswer(*pick_logits(answers, indices, against), trace, answers.shape)
    scores = answer.score.detach().tolist()  # in one go: each look at a GPU waits for it
    probabilities = probabilities_of(model.module, answers.detach())
    chosen = None if probabilities is None else pick_logits(probabilities, indices, [None] * batch)[0].tolist()
    return answer, describe_targets(names, indices, against, predicted, scores, chosen, positions)


def find_indices(
    names: "TargetNames", target: TargetLike, versus: TargetLike, batch: int
) -> tuple[list[int | None], list[int | None]]:
    """The classes or tokens that are asked for, one per example; None: the predicted one, or no contrast."""
    wanted, against = (
        [None if one is None else names.index(one) for one in expand_per_example(given, batch, what)]
        for given, what in ((target, "target"), (versus, "versus"))
    )
    return wanted, against


def refuse_same_targets(names: "TargetNames", indices: Sequence[int], others: Sequence[int | None]) -> None:
    for index, other in zip(indices, others, strict=True):
        if index == other:
            raise TargetError(f"target and versus are both {names.label(index)!r}. Choose two different ones.")


def describe_targets(
    names: "TargetNames",
    indices: Sequence[int],
    others: Sequence[int | None],
    predicted: Sequence[int],
    scores: Sequence[float],
    probabilities: Sequence[float] | None,
    positions: Sequence[int] | None,
) -> tuple[Target, ...]:
    """The target of each example, from numbers of the output."""
    return tuple(
        Target(
            index=index,
            label=names.label(index),
            score=scores[i],
            probability=probabilities[i] if probabilities is not None else None,
            predicted=is_likely(probabilities, i) if names.is_multi_label else index == predicted[i],
            versus=other,
            versus_label=names.label(other) if other is not None else None,
            position=positions[i] if positions is not None else None,
            is_multi_label=names.is_multi_label,
        )
        for i, (index, other) in enumerate(zip(indices, others, strict=True))
    )


def is_likely(probabilities: Sequence[float] | None, example: int) -> bool:
    return probabilities is not None and probabilities[example] > 0.5


def pick_logits(logits: Tensor, targets: Sequence[int], others: Sequence[int | None]) -> tuple[Tensor, Tensor | None]:
    """[batch]: the logits of the targets, and those of `versus`: 0 for rows without one, None if no row has one."""
    rows = torch.arange(len(logits), device=logits.device)
    target = logits[rows, torch.tensor(targets, device=logits.device)]
    if all(other is None for other in others):
        return target, None
    at = torch.tensor([other or 0 for other in others], device=logits.device)
    has_versus = torch.tensor([other is not None for other in others], device=logits.device)
    return target, torch.where(has_versus, logits[rows, at], 0)


def probabilities_of(module: nn.Module, answers: Tensor) -> Tensor | None:
    """[batch class]: sigmoid, softmax or None, depending on what the model returns and on its `problem_type`."""
    wide = answers.double() if answers.dtype == torch.float64 else answers.float()
    scale = scale_of(module)
    if scale == "log-odds":
        return wide.sigmoid()
    if (answers.size(1) == 1 and scale != "sigmoid") or is_regression(module, answers.size(1)):
        return None
    return wide.sigmoid() if is_multi_label(module) else wide.softmax(-1)


def is_value_text(spec: str | None) -> bool:
    return spec is not None and spec.partition(":")[0] == "value"


def add_considered(
    targets: Sequence[Target], model: Model, encoded: EncodedBatch, logits: Tensor
) -> tuple[Target, ...]:
    """The targets, each with the likeliest classes or tokens besides it."""
    if any(target.index < 0 for target in targets):
        return tuple(targets)
    answers, positions, _ = read_logits(encoded, logits.detach())
    probabilities = probabilities_of(model.module, answers)
    if probabilities is None:
        return tuple(targets)
    names = TargetNames(model, answers.size(1), is_language=positions is not None)
    best = probabilities.nan_to_num(0).topk(min(CONSIDERED + 1, answers.size(1)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    found = [[(i, p) for i, p in zip(*row, strict=True) if p >= LEAST_CONSIDERED] for row in rows]
    return tuple(
        replace(target, considered=tuple((names.label(i), p) for i, p in row if i != target.index)[:CONSIDERED])
        for target, row in zip(targets, found, strict=True)
    )


def is_multi_label(module: nn.Module) -> bool:
    """Whether every label is an answer of its own: by the config, or because the forward ends in a sigmoid."""
    scale = scale_of(module)
    problem = getattr(getattr(unwrap(module), "config", None), "problem_type", None)
    return scale == "sigmoid" or (problem == "multi_label_classification" and scale == "logits")


def is_regression(module: nn.Module, classes: int) -> bool:
    """Whether the outputs are values: by the config, or one output that is no probability."""
    problem = getattr(getattr(unwrap(module), "config", None), "problem_type", None)
    return scale_of(module) == "logits" and (classes == 1 or problem == "regression")


def choose_representation(
    model: Model, states: Tensor, trace: Trace, target: TargetLike, versus: TargetLike
) -> tuple[ExplainedAnswer, tuple[Target, ...]]:
    """Explain the representation, states [batch channel]; the score of a target is the norm of its state."""
    for what, wanted in (("target", target), ("versus", versus)):
        if any(entry is not None for entry in expand_per_example(wanted, len(states), what)):
            raise TargetError(
                f"{type(unwrap(model.module)).__name__} has no head, so there is no {what} {wanted!r}. Leave it out to "
                "explain the representation, pass a function of what the model returns, or open the model with its "
                "head."
            )
    answer = ExplainedAnswer(states.norm(dim=-1), None, trace, states.shape)
    targets = tuple(Target(-1, REPRESENTATION, float(score)) for score in answer.score.detach())
    return answer, targets


def read_logits(encoded: EncodedBatch, output: Tensor) -> tuple[Tensor, list[int] | None, Trace]:
    """The logits [batch class], their positions and trace. For a language model, those after the last token."""
    if output.dim() == 1:
        trace = trace_of(output)
        samples, tokens = (
            label.unsqueeze(-1) if label is not None else None for label in (trace.samples, trace.tokens)
        )
        return output[:, None], None, replace(trace, samples=samples, tokens=tokens)
    if output.dim() == 2:
        with pause_recording():
            lacks_some = bool(output.detach().isnan().any())  # classes without a value
        return output.masked_fill(output.isnan(), -torch.inf) if lacks_some else output, None, trace_of(output)
    last, read = find_last_tokens(encoded, output)
    rows = torch.arange(output.size(0), device=output.device)
    answers = output[rows, 0 if output.size(1) == 1 else last]
    return answers, last.tolist(), Trace(samples=None, read=read)


def find_last_tokens(encoded: EncodedBatch, output: Tensor) -> tuple[Tensor, Tensor]:
    """[batch] the position of the last token, and the same as a readout [batch token], of a language model."""
    is_last_only = output.dim() == 3 and output.size(1) == 1  # stock nanoGPT computes only the last position
    if (
        output.dim() != 3
        or encoded.token_mask is None
        or (output.size(1) != encoded.token_mask.size(1) and not is_last_only)
    ):
        raise UnsupportedModel(
            f"The model returns a tensor of shape {list(output.shape)}; a classifier returns [batch, class], "
            "a language model [batch, token, word], a model without a head [batch, channel] or [batch, token, channel]."
        )
    mask = encoded.token_mask.to(output.device)
    positions = torch.arange(mask.size(1), device=mask.device)
    last = torch.where(mask, positions, -1).amax(-1)
    return last, (positions == last[:, None]).double()


def expand_pair(target: TargetLike, versus: TargetLike, batch: int) -> tuple[list[OneTarget], list[OneTarget]]:
    """What is wanted and what it is contrasted with, one per example."""
    return expand_per_example(target, batch, "target"), expand_per_example(versus, batch, "versus")


def expand_per_example(wanted: Any, batch: int, what: str) -> list[OneTarget]:
    """A list with one entry per example, from such a list or from one value for all examples."""
    if hasattr(wanted, "tolist"):  # a tensor, an array, a column
        try:
            wanted = wanted.tolist()
        except (RuntimeError, NotImplementedError):  # sparse, quantised or without values
            raise TargetError(f"{what} must be numbers or labels, got {wanted!r}.") from None
    if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes):
        if len(wanted) != batch:
            raise TargetError(
                f"{what} has {len(wanted)} entries for {batch} examples. Pass one for all, or one per example."
            )
        return list(wanted)
    return [wanted] * batch


class TargetNames:
    """Maps indices of classes or tokens to labels, and back."""

    def __init__(self, model: Model, classes: int, *, is_language: bool) -> None:
        self.classes = classes
        self.is_language = is_language
        self.labels: tuple[str, ...] | None = None if is_language else model.labels
        self.tokenizer = model.tokenizer if is_language else None
        if self.labels is not None and len(self.labels) != classes:
            self.labels = None
        self.is_multi_label = not is_language and classes > 1 and is_multi_label(model.module)
        self.is_regression = not is_language and is_regression(model.module, classes)

    def label(self, index: int) -> str:
        if self.is_regression and (self.labels is None or self.labels[index] == f"LABEL_{index}"):
            return VALUE if self.classes == 1 else f"{VALUE} {index}"
        if self.labels is not None:
            return self.labels[index]
        return self.tokenizer.decode([index]) if self.tokenizer is not None else str(index)

    def index(self, wanted: OneTarget) -> int:
        if isinstance(wanted, str):
            return self._find_token(wanted) if self.is_language else self._find_class(wanted)
        try:
            index = operator.index(wanted) if isinstance(wanted, SupportsIndex) else -1
        except (TypeError, ValueError, RuntimeError):  # what objects without an index, arrays and meta tensors raise
            index = -1
        if isinstance(wanted, bool) or not 0 <= index < self.classes:
            things = ("token", "Tokens") if self.is_language else ("class", "Classes")
            raise TargetError(
                f"There is no {things[0]} {wanted!r}. {things[1]} are 0 to {self.classes - 1}{self._list_labels()}."
            )
        return index

    def _find_class(self, wanted: str) -> int:
        if self.labels is None:
            raise TargetError(
                f"There is no class {wanted!r}: this model has no labels. Pass a number from 0 to {self.classes - 1}."
            )
        matches = [i for i, label in enumerate(self.labels) if label == wanted]
        matches = matches or [i for i, label in enumerate(self.labels) if label.casefold() == wanted.casefold()]
        if len(matches) > 1:
            raise TargetError(f"{len(matches)} classes are called {wanted!r}: {matches}. Pass a number.")
        if not matches:
            raise TargetError(
                f"There is no class {wanted!r}.{suggest_nearest(wanted, self.labels)} Available{self._list_labels()}."
            )
        return matches[0]

    def _find_token(self, wanted: str) -> int:
        if self.tokenizer is None:
            raise TargetError(
                f"{wanted!r} cannot be converted to a token: the model was opened without a tokenizer. "
                f"Pass a number from 0 to {self.classes - 1}."
            )
        if not wanted.isprintable() and any("\ud800" <= character <= "\udfff" for character in wanted):
            raise TargetError(f"Target {wanted!r} is not valid Unicode. Pass another text, or the number of the token.")
        ids = encode_as_continuation(self.tokenizer, wanted)
        if len(ids) != 1:
            pieces = " + ".join(repr(self.tokenizer.decode([i])) for i in ids) or "nothing"
            raise TargetError(
                f"Target {wanted!r} is not one token for this model: it is {pieces}. {self._suggest_token(wanted)}"
            )
        if ids[0] >= self.classes:
            raise TargetError(
                f"Target {wanted!r} is token {ids[0]}, but the model has only {self.classes} tokens: the tokenizer "
                "belongs to another model."
            )
        return ids[0]

    def _suggest_token(self, wanted: str) -> str:
        """The same word with a space before it or without one, if that is one token; words that follow others are."""
        other = wanted.lstrip() if wanted[:1].isspace() else f" {wanted}"
        if other.strip() and len(encode_as_continuation(self.tokenizer, other)) == 1:
            return f'Pass "{other}", {"with a space before it" if other != wanted.lstrip() else "without the space"}.'
        return "Pass a single token."

    def _list_labels(self) -> str:
        if self.labels is None:
            return ""
        shown = ", ".join(self.labels[:20])
        return f": {shown}" + (f" and {len(self.labels) - 20} more" if len(self.labels) > 20 else "")


def encode_as_continuation(tokenizer: Any, wanted: str) -> list[int]:
    """The tokens of `wanted` where it continues a text; on its own, some tokenizers would add a space before it."""
    if wanted in tokenizer.all_special_tokens:
        return [int(tokenizer.convert_tokens_to_ids(wanted))]
    for before in ("a", ":"):
        start, whole = (list(tokenizer.encode(t, add_special_tokens=False)) for t in (before, before + wanted))
        if whole[: len(start)] == start and len(whole) == len(start) + 1:
            return [int(whole[-1])]
    return [int(i) for i in tokenizer.encode(wanted, add_special_tokens=False)]


# --- how the explained score is read ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """The answers of the model to n variants, for the target of the original example."""

    score: Tensor  # [n], the explained logit, the difference of two, or another score
    probability: Tensor  # [n], of the target; its score if it has no probability (a regression, a function)
    logits: Tensor  # [n class]; [n 1], the score, for a target that is no class

    def map(self, change: Callable[[Tensor], Tensor]) -> "Answers":
        return Answers(change(self.score), change(self.probability), change(self.logits))


class Reading(Protocol):
    """Reads the score of each row; row i is a variant of example of[i]."""

    def read(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers: ...


@dataclass(frozen=True)
class ClassReading:
    """The logit of a class or of the next token, minus that of another one if there is one."""

    module: nn.Module
    targets: Sequence[Target]

    def read(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers:
        logits = read_logits(encoded, find_output(returned, self.module))[0]
        wanted = [self.targets[i] for i in of.tolist()]
        target, versus = pick_logits(logits, [t.index for t in wanted], [t.versus for t in wanted])
        score = target if versus is None else target - versus
        probabilities = probabilities_of(self.module, logits)
        probability = target
        if probabilities is not None:
            probability = pick_logits(probabilities, [t.index for t in wanted], [None] * len(wanted))[0]
        return Answers(score, probability, logits)
