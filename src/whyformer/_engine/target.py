"""What is explained: one logit of the model, or the difference of two (`versus`). The logit, never a probability.

A model without a head has no logits, and what is explained is the *representation*, the state it hands on. Methods that
know no class use nothing of it but where it is read. Methods that follow a class have nothing to follow there and are
refused: the obvious stand-in, half the squared length of the state, is nearly the same for every input where a norm
comes last, as it does nearly everywhere, so that its gradient says little.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing.provenance import Trace, trace_of
from whyformer._model.unwrap import unwrap
from whyformer.errors import TargetError, UnsupportedModel, suggest_nearest

UNSUPPORTED_HEADS = {
    "ForMaskedLM": "a word for every place of the text",
    "ForPreTraining": "what it was pretrained for",
    "ForTokenClassification": "a class for every token",
    "ForQuestionAnswering": "the two ends of a span",
    "ForMultipleChoice": "a choice between texts",
    "ForMaskedImageModeling": "a picture",
}
HEAD_NAMES = ("head", "heads", "fc", "classifier")  # where libraries keep it; an identity there is none
REPRESENTATION = "the representation"


@dataclass(frozen=True)
class Target:
    """The explained output of one example."""

    index: int  # -1 for a representation
    label: str
    score: float  # the logit, or the difference of two logits when there is a `versus`
    # Softmax over the classes (or the vocabulary); of each class by itself if there can be many; None for a regression.
    probability: float | None = None
    predicted: bool = True  # it is what the model itself answers
    versus: int | None = None
    versus_label: str | None = None
    position: int | None = None  # language models: the token whose successor is explained


@dataclass(frozen=True)
class ExplainedAnswer:
    """What is explained, on the graph: the target's logit of each example, less that of `versus` where there is one."""

    target: Tensor  # [batch]
    versus: Tensor | None  # [batch], zero where an example has none
    trace: Trace  # where it was read
    shape: torch.Size  # of the logits it was picked from

    @property
    def score(self) -> Tensor:
        return self.target if self.versus is None else self.target - self.versus


def choose_target(
    model: Any, encoded: Any, output: Tensor, target: Any, versus: Any
) -> tuple[ExplainedAnswer, tuple[Target, ...]]:
    """The explained answer, and what it is for each example."""
    refuse_unsupported_heads(model.module)
    answers, positions, trace = read_logits(encoded, output)
    batch, classes = answers.shape
    wanted = expand_per_example(target, batch, "target")
    against = expand_per_example(versus, batch, "versus")
    predicted = answers.argmax(-1).tolist()
    names = TargetNames(model, classes, is_language=positions is not None)
    indices = [predicted[i] if w is None else names.index(w) for i, w in enumerate(wanted)]
    others = [None if w is None else names.index(w) for w in against]
    for index, other in zip(indices, others, strict=True):
        if index == other:
            raise TargetError(f"target and versus are both {names.label(index)!r}: there is nothing to contrast.")
    rows = torch.arange(batch, device=answers.device)
    contrast = None
    if any(other is not None for other in others):
        at = torch.tensor([0 if o is None else o for o in others], device=answers.device)
        counts = torch.tensor([o is not None for o in others], device=answers.device)
        contrast = torch.where(counts, answers[rows, at], 0)
    answer = ExplainedAnswer(
        answers[rows, torch.tensor(indices, device=answers.device)], contrast, trace, answers.shape
    )
    scores = answer.score
    probabilities = probabilities_of(model.module, answers.detach())
    targets = tuple(
        Target(
            index=index,
            label=names.label(index),
            score=float(scores[i].detach()),
            probability=float(probabilities[i, index]) if probabilities is not None else None,
            predicted=index == predicted[i],
            versus=other,
            versus_label=names.label(other) if other is not None else None,
            position=positions[i] if positions is not None else None,
        )
        for i, (index, other) in enumerate(zip(indices, others, strict=True))
    )
    return answer, targets


def probabilities_of(module: Any, answers: Tensor) -> Tensor | None:
    """[batch class], by what the model was trained for as far as it says so."""
    problem = getattr(getattr(unwrap(module), "config", None), "problem_type", None)
    if answers.size(1) == 1 or problem == "regression":
        return None
    wide = answers.double() if answers.dtype == torch.float64 else answers.float()
    return wide.sigmoid() if problem == "multi_label_classification" else wide.softmax(-1)


def refuse_unsupported_heads(module: Any) -> None:
    """Hugging Face models whose answer would be taken for classes or next tokens, and is neither."""
    inner = unwrap(module)
    name = type(inner).__name__
    if not hasattr(inner, "main_input_name"):
        return
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} has an encoder and a decoder, which is not supported yet.")
    if head := next((head for head in UNSUPPORTED_HEADS if name.endswith(head)), None):
        raise UnsupportedModel(
            f"{name} answers with {UNSUPPORTED_HEADS[head]}. Open a classifier of whole examples, or a model of the "
            "next token."
        )


def has_head(module: Any, output: Tensor, *, is_image: bool) -> bool:
    """The answer is a class or a next token; a representation otherwise, by the model's name, its head or its shape."""
    inner = unwrap(module)
    name = type(inner).__name__
    if hasattr(inner, "main_input_name") and name.endswith("Model") and "Head" not in name:
        return False
    if getattr(inner, "num_classes", None) == 0 or (is_image and output.dim() == 3):
        return False
    return not any(isinstance(getattr(inner, head, None), torch.nn.Identity) for head in HEAD_NAMES)


def choose_representation(
    model: Any, states: Tensor, trace: Trace, target: Any, versus: Any
) -> tuple[ExplainedAnswer, tuple[Target, ...]]:
    """The representation as what is explained, states [batch channel]; its score is its length."""
    for what, wanted in (("target", target), ("versus", versus)):
        if any(one is not None for one in expand_per_example(wanted, len(states), what)):
            raise TargetError(
                f"{type(unwrap(model.module)).__name__} has no head, so there is no {what} {wanted!r}. Leave it out to "
                "explain the representation, or open the model with its head."
            )
    answer = ExplainedAnswer(states.norm(dim=-1), None, trace, states.shape)
    targets = tuple(Target(-1, REPRESENTATION, float(score)) for score in answer.score.detach())
    return answer, targets


def read_logits(encoded: Any, output: Tensor) -> tuple[Tensor, list[int] | None, Trace]:
    """The logits [batch class]; for a language model those after the last real token of each example."""
    if output.dim() == 1:
        trace = trace_of(output)
        samples, tokens = (
            label.unsqueeze(-1) if label is not None else None for label in (trace.samples, trace.tokens)
        )
        return output[:, None], None, replace(trace, samples=samples, tokens=tokens)
    if output.dim() == 2:
        return output, None, trace_of(output)
    if output.dim() != 3 or encoded.token_mask is None or output.size(1) != encoded.token_mask.size(1):
        raise UnsupportedModel(
            f"The model answers with a tensor of shape {list(output.shape)}; a classifier answers [batch, class], "
            "a language model [batch, token, word], a model without a head [batch, channel] or [batch, token, channel]."
        )
    mask = encoded.token_mask.to(output.device)
    places = torch.arange(mask.size(1), device=mask.device)
    last = torch.where(mask, places, -1).amax(-1)
    read = torch.nn.functional.one_hot(last, mask.size(1)).double()
    rows = torch.arange(output.size(0), device=output.device)
    return output[rows, last], last.tolist(), Trace(samples=None, read=read)


def expand_per_example(wanted: Any, batch: int, what: str) -> list[Any]:
    """One wish per example, from one for all or a list."""
    if hasattr(wanted, "tolist"):  # a tensor or array
        wanted = wanted.tolist()
    if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes):
        if len(wanted) != batch:
            raise TargetError(
                f"{len(wanted)} entries in {what} for {batch} examples. Give one for all, or one for each."
            )
        return list(wanted)
    return [wanted] * batch


class TargetNames:
    """Labels of classes or tokens, both ways."""

    def __init__(self, model: Any, classes: int, *, is_language: bool) -> None:
        self.classes = classes
        self.is_language = is_language
        self.labels: tuple[str, ...] | None = None if is_language else model.labels
        self.tokenizer = model.tokenizer if is_language else None
        if self.labels is not None and len(self.labels) != classes:
            self.labels = None

    def label(self, index: int) -> str:
        if self.labels is not None:
            return self.labels[index]
        return self.tokenizer.decode([index]) if self.tokenizer is not None else str(index)

    def index(self, wanted: Any) -> int:
        if isinstance(wanted, str):
            return self._token(wanted) if self.is_language else self._class(wanted)
        try:
            index = operator.index(wanted)
        except TypeError:
            index = -1
        if isinstance(wanted, bool) or not 0 <= index < self.classes:
            things = ("token", "Tokens") if self.is_language else ("class", "Classes")
            raise TargetError(
                f"There is no {things[0]} {wanted!r}. {things[1]} are 0 to {self.classes - 1}{self._listed()}."
            )
        return index

    def _class(self, wanted: str) -> int:
        if self.labels is None:
            raise TargetError(
                f"There is no class {wanted!r}: this model has no labels. Give a number from 0 to {self.classes - 1}."
            )
        found = [i for i, label in enumerate(self.labels) if label == wanted]
        found = found or [i for i, label in enumerate(self.labels) if label.casefold() == wanted.casefold()]
        if len(found) > 1:
            raise TargetError(f"{len(found)} classes are called {wanted!r}: {found}. Give a number.")
        if not found:
            raise TargetError(
                f"There is no class {wanted!r}.{suggest_nearest(wanted, self.labels)} There are{self._listed()}."
            )
        return found[0]

    def _token(self, wanted: str) -> int:
        if self.tokenizer is None:
            raise TargetError(
                f"Which token {wanted!r} is cannot be known: the model was opened without a tokenizer. "
                f"Give a number from 0 to {self.classes - 1}."
            )
        ids = encode_as_continuation(self.tokenizer, wanted)
        if len(ids) != 1:
            pieces = " + ".join(repr(self.tokenizer.decode([i])) for i in ids) or "nothing"
            raise TargetError(f"Target {wanted!r} is not one token for this model: it is {pieces}. Give one token.")
        if ids[0] >= self.classes:
            raise TargetError(
                f"Target {wanted!r} is token {ids[0]}; the model answers with {self.classes}. "
                "Its tokenizer is of another model."
            )
        return ids[0]

    def _listed(self) -> str:
        if self.labels is None:
            return ""
        shown = ", ".join(self.labels[:20])
        return f": {shown}" + (f" and {len(self.labels) - 20} more" if len(self.labels) > 20 else "")


def encode_as_continuation(tokenizer: Any, wanted: str) -> list[int]:
    """The tokens of `wanted` after other text: alone, some tokenizers would put a blank before it."""
    if wanted in tokenizer.all_special_tokens:
        return [int(tokenizer.convert_tokens_to_ids(wanted))]
    for before in ("a", ":"):
        start, whole = (list(tokenizer.encode(t, add_special_tokens=False)) for t in (before, before + wanted))
        if whole[: len(start)] == start and len(whole) == len(start) + 1:
            return [int(whole[-1])]
    return [int(i) for i in tokenizer.encode(wanted, add_special_tokens=False)]
