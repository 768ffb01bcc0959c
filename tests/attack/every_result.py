"""Every kind of result with one word in every place that untrusted text can reach."""

import dataclasses
from functools import cache
from pathlib import Path

import torch
from audit.known import deciding, sentences
from judge.bench_parts import FACTS, brightness, metric_of, tiny
from show.sample_explanations import explain_image, explain_text

import whyformer as why
from whyformer._engine.targets.target import Target
from whyformer.data import Data, Example, Problem
from whyformer.errors import MethodError
from whyformer.methods._registry import describe_method
from whyformer.metrics._registry import Measurement
from whyformer.results.attention_view import AttentionView
from whyformer.results.class_grid import ClassGrid
from whyformer.results.comparison import Comparison
from whyformer.results.diagnosis import MethodCheck
from whyformer.results.explanation import Explanation
from whyformer.results.generation import Generation

HARMLESS = "plain"


def make_text(word: str) -> Explanation:
    """The word as a token, a label, a text, a model, a method, a setting, a version and a note."""
    text = f"a {word} b"
    cuts = [(0, 1), (2, 2 + len(word)), (len(text) - 1, len(text))]
    return explain_text(text, cuts, [0.5, -1.0, 1.0], **_name_all(word), settings={word: word}, versions={word: word})


def make_image(word: str) -> Explanation:
    return explain_image(**_name_all(word), settings={word: word}, versions={word: word})


def _name_all(word: str) -> dict:
    target = Target(1, word, 2.0, 0.9, True, 0, word)
    return dict(targets=(target,), names=(word,), method=word, model=word, notes=(word,))


def make_comparison(word: str, make=make_text) -> Comparison:
    return Comparison({word: make(word), "other": make(word)}, {f"{word} failed": word})


def make_view(word: str) -> AttentionView:
    e = make_text(word)
    weights = torch.rand(2, 2, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    return AttentionView(
        {"attention": weights, "gradient": weights - 0.2}, torch.tensor([1.0, 0, 0, 0]), e.tokens[0], None,
        ("[CLS]", "a", word, "b"), e.targets[0], word, word, None, {word: word}, (word,),
    )  # fmt: skip


def make_generation(word: str) -> Generation:
    first, second = make_text(word), make_text(word)
    token = Target(1, word, 2.0, 0.9, position=3)
    return Generation(f"a {word} b", 1, tuple(dataclasses.replace(e, targets=(token,)) for e in (first, second)))


def make_diagnosis(word: str) -> why.Diagnosis:
    works = MethodCheck(word, "works", seconds=0.1, forwards=2.0, memory=10, settings={word: word}, notes=(word,))
    refused = MethodCheck(f"{word} 2", "refused", word, word)
    return why.Diagnosis(word, {word: word}, (works, refused), 0.1, 10, word, {word: word}, (word,))


RESULTS = {
    "text": make_text,
    "image": make_image,
    "comparison": make_comparison,
    "comparison of images": lambda word: make_comparison(word, make_image),
    "classes": lambda word: ClassGrid((make_comparison(word), make_comparison(word))),
    "classes of images": lambda word: ClassGrid((make_comparison(word, make_image),)),
    "attention": make_view,
    "generation": make_generation,
    "diagnosis": make_diagnosis,
}


# --- the verbs on data sets -------------------------------------------------------------------------------------------


def judge_named(word: str, out: Path):
    """Methods, a metric, the model, a label, the examples, the data, a problem and a failure called like the word."""

    def broken(input, mask):
        raise MethodError(f"{word} went wrong")

    def slope(explanation):
        value = explanation.scores[:, 0].double()
        return Measurement(value, torch.stack([value, value / 2], 1), (0.0, 1.0))

    named = dataclasses.replace(describe_method(brightness, **FACTS), name=word)
    failing = dataclasses.replace(describe_method(broken, **FACTS), name=f"{word} 2")
    metric = dataclasses.replace(metric_of(slope), name=word)
    model = why.Model(tiny().module, word, labels=(word, "two", "three", "four"))
    pixels = [torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(i)).double() for i in range(2)]
    examples = tuple(Example(word, {"pixel_values": one}, label=word) for one in pixels)
    data = Data(word, examples, (Problem(word, word),))
    return why.judge(model, data, [named, failing, "rollout"], metric, out=out)


@cache
def audit_once() -> why.Audit:
    data = [(words, i % 2) for i, words in enumerate(sentences(6))]
    return why.audit(deciding(), data, samples=3, search_limit=2, steps=2, tests=["agreement", "replacement", "shape"])


def audit_named(word: str) -> why.Audit:
    """As loaded from a file that says so: every name in it is the word."""
    found = audit_once()
    settings = {**found.settings, "methods": [word], "attention": [word]}
    rows = tuple({**row, "attention": word} if row["attention"] else {**row, "name": word} for row in found.rows)
    rows = tuple({k: v for k, v in row.items() if k != "name" or row["test"] == "answer"} for row in rows)
    return why.Audit(rows, (word,), (word,), word, word, (word, "yes"), settings, {word: word}, (word,))
