"""What a model takes and answers, and which methods work on it, for the page to offer."""

from typing import Any

import torch

import whyformer.methods  # noqa: F401 (fills METHODS)
from whyformer._engine import find_task, make_shadow, record, run_plain_returned
from whyformer._explain.default_method import IMAGE_METHOD, TEXT_METHOD
from whyformer._explain.diagnose import diagnose
from whyformer._explain.explain import explain
from whyformer._model import IMAGE_FILLS, EncodedBatch, InputLike, Model, TextPair
from whyformer._page.answers.inputs import PageQuestion
from whyformer._page.answers.spans import ANSWER_SPAN
from whyformer.demo.sample_files import SAMPLES
from whyformer.errors import UnsupportedModel
from whyformer.methods._registry import METHODS, Method
from whyformer.show.visible import make_visible

SAMPLE_TEXTS = ("a gorgeous, witty film", "the plot is a tedious and predictable mess")
SAMPLE_PAIR = ("the lamp is old. it looks wet.", "the lamp is dry.")
SAMPLE_QUESTION = ("Where is the red lamp?", "The blue lamp is in the hall. The red lamp is in the kitchen.")
PAIR_LABELS = ("entailment", "contradiction", "not_entailment")
WHY_DEFAULT = {
    IMAGE_METHOD: "It was measured best for images, over several models and metrics (docs/judge-measured.md).",
    TEXT_METHOD: "It was measured best for texts, over several models and metrics (docs/judge-measured.md).",
}
FILL_TITLES = {
    "zero": "the model's own fill: 0 after normalisation, a grey",
    "blur": "blur",
    "mean": "the mean colour of the image",
    "black": "black",
    "noise": "noise",
    "mask": "the model's own fill: the mask token",
    "unknown": "the unknown token",
    "pad": "taken out of the attention",
    "delete": "deleted: the rest moves together",
}


def show_model(model: Model) -> dict[str, Any]:
    """Everything the page needs to know before it asks. The model is run once, so the first question is not slow."""
    refuse_other_models(model)
    encoded = model.encode(warm_up_input(model))
    kind, task = name_kind_of_model(model, encoded)
    samples = list_prompts() if kind == "language model" else list_samples(model, task)
    method = IMAGE_METHOD if kind == "image" else TEXT_METHOD
    explain(model, encoded)
    return {
        "name": make_visible(model.name),
        "kind": kind,
        "task": task,
        "labels": None
        if model.labels is None or kind == "language model" or task == ANSWER_SPAN
        else [make_visible(label) for label in model.labels],
        "max_tokens": model.max_length,
        "chat": getattr(model.tokenizer, "chat_template", None) is not None,
        "pairs": kind in ("text", "pair") and takes_pairs(model),
        "notes": [make_visible(note) for note in model.notes],
        "fills": list_fills(model, encoded, task),
        "default_method": method,
        "default_why": WHY_DEFAULT[method],
        "methods": [show_method(one, method) for one in sort_methods(method)],
        "samples": samples,
    }


def refuse_other_models(model: Model) -> None:
    if model.kind == "tensors":
        raise UnsupportedModel(
            f"{model.name} has no tokenizer or image processor, so the page cannot give it anything."
        )
    if model.joint_processor is not None:
        raise UnsupportedModel(f"{model.name} reads images between words, which the page does not do yet. Use Python.")


def warm_up_input(model: Model) -> InputLike:
    if model.kind == "image":
        return str(SAMPLES / "cat.jpg")
    return {"text": SAMPLE_TEXTS[0]}


def name_kind_of_model(model: Model, encoded: EncodedBatch) -> tuple[str, str]:
    """What the page calls the model, and its task."""
    task = find_task(model, encoded, run_plain_returned(make_shadow(model.module), encoded), is_causal=lambda: True)
    if model.kind == "image":
        return "image", task.kind
    if task.kind == "next token":
        return "language model", task.kind
    labels = {label.lower() for label in model.labels or ()}
    reads_pairs = task.kind == ANSWER_SPAN or bool(labels & set(PAIR_LABELS))
    return ("pair" if reads_pairs else "text"), task.kind


def takes_pairs(model: Model) -> bool:
    """Whether two texts can be read together: the tokenizer puts something between them."""
    one, two = (model.tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
    return bool(two > one)


def list_fills(model: Model, encoded: EncodedBatch, task: str) -> list[dict[str, str]]:
    """What can take the place of hidden parts, the model's own fill first. Where words are deleted, no span stays."""
    probe = record(model, encoded, keep={"probe"})["probe"]
    others = IMAGE_FILLS if probe.is_image else ("mask", "unknown", "pad", "delete")
    names = [probe.fill, *(name for name in others if name != probe.fill)]
    keep = torch.ones(1, probe.units, dtype=torch.bool)
    keep[0, int(probe.real[0].nonzero()[0])] = False
    works = []
    for name in names:
        if task == ANSWER_SPAN and name == "delete":
            continue
        try:
            probe.keep_only(keep, torch.zeros(1, dtype=torch.long), name)
        except Exception:
            continue
        works.append({"name": name, "title": FILL_TITLES[name]})
    return works


def sort_methods(default: str) -> list[Method]:
    """The default first, then those that take one pass of each kind, then the others."""
    return sorted(METHODS.values(), key=lambda one: (one.name != default, not one.is_quick, len(one.needs), one.name))


def show_method(method: Method, default: str) -> dict[str, Any]:
    return {
        "name": method.name,
        "summary": method.summary,
        "paper": method.paper,
        "cost": method.cost,
        "quick": method.is_quick,
        "class_specific": method.class_specific,
        "signed": method.signed,
        "is_default": method.name == default,
        "available": True if method.name == default else None,
        "why_not": "",
        "seconds": None,
    }


def answer_try(question: PageQuestion) -> dict[str, Any]:
    """Whether one method works on this model, on an input of ours."""
    check = diagnose(question.model, warm_up_input(question.model), [question.body["method"]]).checks[0]
    works = check.state == "works"
    return {"available": works, "why_not": "" if works else make_visible(check.reason), "seconds": check.seconds}


# --- samples ----------------------------------------------------------------------------------------------------------


def list_samples(model: Model, task: str) -> list[dict[str, Any]]:
    """Something to try the page on. The server adds the photograph to image models."""
    if model.kind != "text":
        return []
    is_question = task == ANSWER_SPAN
    if is_question or {label.lower() for label in model.labels or ()} & set(PAIR_LABELS):
        pair = TextPair(*(SAMPLE_QUESTION if is_question else SAMPLE_PAIR))
        return [{"title": " / ".join(pair), "input": {"text": pair[0], "second": pair[1]}}]
    return [{"title": text, "input": {"text": text}} for text in SAMPLE_TEXTS]


def list_prompts() -> list[dict[str, Any]]:
    text = (SAMPLES / "passages.txt").read_text(encoding="utf-8")
    return [{"title": "three passages and a question", "input": {"prompt": text}}]
