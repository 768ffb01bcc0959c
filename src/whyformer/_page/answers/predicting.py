"""What the model answers: probabilities of classes or next tokens, also with parts of the input hidden."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine import (
    Answers,
    Probe,
    TargetLike,
    TargetNames,
    find_task,
    make_shadow,
    probabilities_of,
    read_logits,
    record,
    run_plain_returned,
)
from whyformer._explain.explain import explain
from whyformer._model import EncodedBatch, Model
from whyformer._page.answers import recipes
from whyformer._page.answers.inputs import Fields, PageQuestion, encode_question, read_input, read_span, read_target
from whyformer._page.answers.spans import ANSWER_SPAN, SpanAnswers, SpanReading, read_ends
from whyformer._page.answers.units import shorten_number, shorten_numbers, show_target
from whyformer.errors import InputError, TargetError
from whyformer.results.explanation import Explanation
from whyformer.show.visible import make_visible

SHOWN = 10  # classes, likeliest first
ONE_ANSWER = ("class", "next token")  # tasks with one distribution for each input
Ranked = list[dict[str, Any]]


class Distribution:
    """The logits of every class or next token for one input."""

    def __init__(self, model: Model, logits: Tensor, *, is_language: bool) -> None:
        self.model, self.is_language = model, is_language
        self.logits = logits.detach().double().cpu()
        self.names = TargetNames(model, len(logits), is_language=is_language)
        shares = probabilities_of(model.module, logits[None].detach())
        self.shares = None if shares is None else shares[0].double().cpu()

    def describe(self, indices: Sequence[int]) -> Ranked:
        return [
            {
                "index": index,
                "label": make_visible(self.names.label(index)),
                "probability": None if self.shares is None else shorten_number(float(self.shares[index])),
                "score": shorten_number(float(self.logits[index])),
            }
            for index in indices
        ]

    def rank(self, most: int) -> list[int]:
        return self.logits.argsort(descending=True, stable=True)[:most].tolist()

    def of_variant(self, logits: Tensor) -> "Distribution":
        return Distribution(self.model, logits, is_language=self.is_language)


Found: TypeAlias = Distribution | SpanAnswers


def predict_one(model: Model, encoded: EncodedBatch) -> Found | None:
    """The answer to one input; None if it is not one class, token or span."""
    returned = run_plain_returned(make_shadow(model.module), encoded)
    task = find_task(model, encoded, returned, is_causal=lambda: True)
    if task.kind == ANSWER_SPAN:
        return SpanAnswers(encoded.pieces(task.output.size(1))[0], read_ends(returned)[0])
    if task.kind not in ONE_ANSWER:
        return None
    logits, positions, _ = read_logits(encoded, task.output)
    return Distribution(model, logits[0], is_language=positions is not None)


def ask_question(question: PageQuestion) -> Found | None:
    return question.recall("answer", lambda: predict_one(question.model, question.asked))


def rank_answers(question: PageQuestion) -> Ranked:
    """The likeliest classes, next tokens or spans; none if the model answers otherwise."""
    return describe_likeliest(ask_question(question))


def describe_likeliest(found: Found | None, of: Found | None = None) -> Ranked:
    """The likeliest answers, or what is found for those that were the likeliest of another input."""
    ranked = of or found
    return [] if found is None or ranked is None else found.describe(ranked.rank(SHOWN))  # type: ignore[arg-type]


# --- variants ---------------------------------------------------------------------------------------------------------


def answer_predict(question: PageQuestion) -> dict[str, Any]:
    """The probabilities of the input, and of each variant of it."""
    before = require_distribution(question.model, ask_question(question))
    found = [ask_variant(question, before, one) for one in question.body["variants"]]
    return {
        "before": {"classes": describe_likeliest(before)},
        "variants": [describe_variant(one, before) for one in found],
        "code": recipes.write_predict(question),
    }


def describe_variant(found: Found, before: Found) -> dict[str, Ranked]:
    return {"classes": describe_likeliest(found), "of_before": describe_likeliest(found, before)}


def ask_variant(question: PageQuestion, before: Found, variant: Fields) -> Found:
    """The answer to one variant, whatever others are asked about."""
    model = question.model
    if variant["hidden"] is None:
        inputs = read_input(model, variant["input"], question.images)
        return require_distribution(model, predict_one(model, encode_question(model, inputs)))
    probe = question.recall("probe", lambda: probe_input(question, question.asked))
    keep = read_keep(probe, variant["hidden"])
    answers = probe.keep_only(keep[None], torch.zeros(1, dtype=torch.long), variant["hidden"]["fill"])
    return before.of_variant(answers.logits[0])


def probe_input(
    question: PageQuestion, encoded: EncodedBatch, target: TargetLike = None, versus: TargetLike = None
) -> Probe:
    """Of an answer that is marked in a text, it reads the other spans too."""
    probe: Probe = record(question.model, encoded, target=target, versus=versus, keep={"probe"})["probe"]
    found = ask_question(question)
    if isinstance(found, SpanAnswers) and versus is None:
        probe.reading = found.make_reading(probe.targets[0].spec or "")
    return probe


def require_distribution(model: Model, found: Found | None) -> Found:
    if found is None:
        raise TargetError(f"{model.name} does not choose one class, next token or span, so it has no probabilities.")
    return found


def read_keep(probe: Probe, hidden: Fields) -> Tensor:
    """[unit], or [height width] of the model's view: True where the input stays."""
    if hidden["mask"] is not None:
        if not probe.is_image:
            raise InputError("A mask is for images. Name the tokens of a text.")
        mask = hidden["mask"]
        cells = torch.tensor([cell == "1" for cell in mask["cells"]]).reshape(1, 1, mask["rows"], mask["columns"])
        size = probe.encoded.inputs[probe.encoded.main].shape[-2:]
        return ~F.interpolate(cells.float(), size=tuple(size), mode="nearest")[0, 0].bool()
    name = "patches" if hidden["patches"] is not None else "tokens"
    if (name == "patches") != probe.is_image:
        raise InputError("Patches are hidden in images, tokens in texts.")
    keep = torch.ones(probe.units, dtype=torch.bool)
    for index in hidden[name]:
        if index >= probe.units:
            raise InputError(f"There is no {name[:-1]} {index}: the input has {probe.units}.", code="E_OPTION")
        keep[index] = False
    return keep


# --- curves -----------------------------------------------------------------------------------------------------------


def answer_curve(question: PageQuestion) -> dict[str, Any]:
    """The probability of the target while more and more of the top is hidden, or shown alone."""
    body, model, encoded = question.body, question.model, question.encoded
    target = read_span(body["span"], read_target(model, body["target"]))
    versus = read_target(model, body["versus"])
    explained = explain(model, encoded, body["method"], target=target, versus=versus)
    probe = probe_input(question, encoded, target, versus)
    order = order_units(explained, probe)
    shares = [step / body["steps"] for step in range(body["steps"] + 1)]
    hide = torch.stack([keep_some(order, probe.units, share, top=False) for share in shares])
    show = torch.stack([keep_some(order, probe.units, share, top=True) for share in shares])
    fill = probe.check_fill(body["fill"])
    found = [probe.keep_only(keep, torch.zeros(len(keep), dtype=torch.long), fill) for keep in (hide, show)]
    is_class = explained.targets[0].index >= 0 and explained.targets[0].probability is not None
    has_probability = is_class or isinstance(probe.reading, SpanReading)
    return {
        "shares": shares,
        "hide_top": shorten_numbers(found[0].probability) if has_probability else None,
        "show_only_top": shorten_numbers(found[1].probability) if has_probability else None,
        "score_hide": shorten_numbers(found[0].score),
        "score_show": shorten_numbers(found[1].score),
        "order": order,
        "method": explained.method,
        "target": show_target(explained.targets[0]),
        "fill": fill,
        "nothing": describe_nothing(question, found[0].logits[-1]),
        "words": describe_curve(found, has_probability, fill),
        "code": recipes.write_curve(question, explained.method, fill),
    }


def describe_nothing(question: PageQuestion, logits: Tensor) -> dict[str, Any] | None:
    """What the model answers when everything is hidden; None where that is no choice among classes, tokens or spans."""
    before = ask_question(question)
    if before is None or len(logits) != len(before.logits):
        return None
    after = before.of_variant(logits)
    (was, *_), (now, *_) = describe_likeliest(before), describe_likeliest(after)
    still = "still " if was["index"] == now["index"] else ""
    said = f"With everything hidden the model {still}says {now['label']}"
    if now["probability"] is not None:
        said += f" ({now['probability']:.1%})"
    return describe_variant(after, before) | {"words": f"{said}."}


def order_units(explained: Explanation, probe: Probe) -> list[int]:
    """The patches or tokens that can be hidden, highest score first."""
    ranked = explained.scores[0].argsort(descending=True, stable=True).tolist()
    real = probe.real[0].tolist()
    return [unit for unit in ranked if real[unit]]


def keep_some(order: Sequence[int], units: int, share: float, *, top: bool) -> Tensor:
    """[unit]: True where it stays, with the top share hidden, or alone."""
    count = round(share * len(order))
    keep = torch.ones(units, dtype=torch.bool)
    keep[list(order[count:] if top else order[:count])] = False
    return keep


def describe_curve(found: Sequence[Answers], has_probability: bool, fill: str) -> str:
    """What the two curves say about the top of the map, in a sentence."""
    what = "probability" if has_probability else "score"
    hide, show = (getattr(one, what).double().mean().item() for one in found)
    return (
        f"On average over the steps the {what} is {hide:.3g} with the top hidden and {show:.3g} with only the top "
        f"shown (fill: {fill}). The further apart, the better the map points at what the model uses."
    )
