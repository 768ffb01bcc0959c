"""The bench: one batch of examples under all methods and all metrics, from one run of the model.

One capture holds what all methods need, and the probe that all perturbations go through. What fails on a batch is tried
on each of its examples alone, so that one bad example costs one example; what still fails becomes a row that says why.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whyformer._engine.capture import Capture
from whyformer._engine.record import record
from whyformer._judge.rows import NAN, Row, Shard
from whyformer._model import text as texts
from whyformer._model.image import as_image
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain.tokens import Pieces, Tokens
from whyformer.data import Data, Example
from whyformer.data.masks import align_mask, read_mask
from whyformer.errors import InputError
from whyformer.metrics._registry import Measurement, Rationale, measure
from whyformer.metrics._registry import MetricCall as Measure
from whyformer.metrics._rerun import Rerun
from whyformer.results.comparison import rank_correlation
from whyformer.results.explanation import Explanation, MethodCall, make_explanation, record_for_methods

MAX_REASON_LENGTH = 300  # characters of a reason that are kept
NOTE_SEPARATOR = "; "  # between two notes on an example


@dataclass(frozen=True, eq=False)
class PreparedExample:
    """An example made ready for the model: its input cut to fit, its truth in the model's terms."""

    place: int  # in the data
    name: str
    content: Any = None
    label: int = -1
    mask: np.ndarray | None = None
    rationale: Rationale | None = None
    missing: Mapping[str, str] | None = None  # why there is no label, mask or rationale
    failure: str | None = None  # why it cannot be explained at all
    note: str = ""

    def why_missing(self, truth: str) -> str:
        return (self.missing or {}).get(truth, f"there is no {truth}")


@dataclass(frozen=True, eq=False)
class ExampleGroup:
    """Some cases of a batch that went through the model together."""

    cases: Sequence[PreparedExample]
    encoded: EncodedBatch
    base: Capture  # with the probe
    explanations: Mapping[str, Explanation]
    failures: Mapping[str, str]  # of methods, and why
    predicted: Sequence[int]


@dataclass(frozen=True, eq=False)
class Bench:
    model: Model
    data: Data
    methods: Mapping[str, MethodCall]
    metrics: Mapping[str, Measure]
    target: Any = "predicted"

    def make_shard(self, places: Sequence[int]) -> Shard:
        """All rows of these examples."""
        cases, encoded = self.encoded([prepare_example(self.model, self.data, place) for place in places])
        ready = [one for one in cases if one.failure is None]
        at: dict[str, Sequence[float]] = {}
        found = self.measure_rows(ready, encoded, at) if encoded is not None else []
        by_key = {(row.example, row.method, row.metric): row for row in found}
        for one in cases:
            if one.failure is not None:
                by_key |= {(one.place, m, k): make_failed_row(one, m, k, one.failure) for m, k in self.pairs}
        return Shard(tuple(by_key[one.place, m, k] for one in cases for m, k in self.pairs), at)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(method, metric) for method in self.methods for metric in self.metrics]

    def encoded(self, cases: Sequence[PreparedExample]) -> tuple[list[PreparedExample], EncodedBatch | None]:
        """The cases, those that the model cannot take marked with the reason, and the others as a batch."""
        ready = [one for one in cases if one.failure is None]
        try:
            return list(cases), self.model.encode([one.content for one in ready]) if ready else None
        except Exception as error:
            if len(ready) == 1:
                why = reason_of(error)
                return [one if one.failure is not None else replace(one, failure=why) for one in cases], None
        alone = {one.place: self.encoded([one])[0][0] for one in ready}
        cases = [alone.get(one.place, one) for one in cases]
        left = [one.content for one in cases if one.failure is None]
        return list(cases), self.model.encode(left) if left else None

    # --- groups -------------------------------------------------------------------------------------------------------

    def measure_rows(
        self, cases: Sequence[PreparedExample], encoded: EncodedBatch, at: dict[str, Sequence[float]]
    ) -> list[Row]:
        """All rows of these cases; what fails on all of them together is tried on each alone."""
        group = self.explain_group(cases, encoded)
        if isinstance(group, str):
            rows = [make_failed_row(one, m, k, group) for one in cases for m, k in self.pairs]
            agreement = [NAN] * len(cases)
        else:
            rows = [row for m, k in self.pairs for row in self.measured(group, m, k, at)]
            agreement = measure_method_agreement(group.explanations, len(cases))
        again = {(row.method, row.metric) for row in rows if row.state == "failed"}
        if again and len(cases) > 1:
            alone = [row for one in cases for row in self.measure_rows([one], self.model.encode([one.content]), at)]
            rows = [row for row in rows if (row.method, row.metric) not in again]
            rows += [row for row in alone if (row.method, row.metric) in again]
        places = {one.place: i for i, one in enumerate(cases)}
        return [replace(row, agreement=agreement[places[row.example]]) for row in rows]

    def explain_group(self, cases: Sequence[PreparedExample], encoded: EncodedBatch) -> ExampleGroup | str:
        """The explanations of these cases by every method that can, or why there can be none."""
        target = self.targets(cases)
        try:
            shared = self.capture_shared(list(self.methods.values()), encoded, target)
            base = shared or record(self.model, encoded, target=target, keep={"probe"})
            _ = base["probe"].before  # once for all methods, so that none of them seems to pay for it
        except Exception as error:
            return reason_of(error)
        explanations: dict[str, Explanation] = {}
        failures: dict[str, str] = {}
        for label, chosen in self.methods.items():
            try:
                own = shared or record_for_methods([chosen], self.model, encoded, target, None)
                explanations[label] = make_explanation(chosen, self.model, encoded, own)
            except Exception as error:
                failures[label] = reason_of(error)
        predicted = base["probe"].before.logits.argmax(-1).tolist()
        return ExampleGroup(cases, encoded, base, explanations, failures, predicted)

    def capture_shared(self, chosen: Sequence[MethodCall], encoded: EncodedBatch, target: Any) -> Capture | None:
        """One run for all methods; None where what some of them need cannot be had."""
        keep = {need for one in chosen for need in one.method.needs} | {"probe"}
        recipes = list(dict.fromkeys(one.recipe for one in chosen if one.recipe))
        try:
            return record(self.model, encoded, target=target, keep=keep, recipes=recipes)
        except Exception as error:
            reason_of(error)
            return None

    def targets(self, cases: Sequence[PreparedExample]) -> Any:
        """The class to be explained: what the model predicts, the true one where it is known, or the one given."""
        if self.target == "predicted":
            return None
        if self.target == "label":
            return [one.label if one.label >= 0 else None for one in cases]
        return self.target

    # --- measuring ----------------------------------------------------------------------------------------------------

    def measured(self, group: ExampleGroup, method: str, metric: str, at: dict[str, Sequence[float]]) -> list[Row]:
        """The rows of a group under one method and metric."""
        if method in group.failures:
            return [make_failed_row(one, method, metric, group.failures[method]) for one in group.cases]
        chosen, found = self.metrics[metric], None
        truth = chosen.needs_truth
        if truth is None or any(has_truth(one, truth) for one in group.cases):
            try:
                found = measure(chosen, self.given(group, method))
            except Exception as error:
                return [make_failed_row(one, method, metric, reason_of(error)) for one in group.cases]
            if found.curve is not None:
                at.setdefault(metric, [float(step) for step in found.at])
        rows = []
        for i, one in enumerate(group.cases):
            bare = self.make_bare_row(group, i, method, metric)
            if found is None or (truth is not None and not has_truth(one, truth)):
                rows.append(replace(bare, state="missing", reason=one.why_missing(str(truth))))
            else:
                rows.append(fill_row(bare, found, i))
        return rows

    def make_bare_row(self, group: ExampleGroup, i: int, method: str, metric: str) -> Row:
        """All that is known of an example under a method but the number."""
        one, explanation = group.cases[i], group.explanations[method]
        target = explanation.targets[i]
        return Row(
            one.place,
            one.name,
            method,
            metric,
            note=one.note,
            label=one.label,
            target=target.index,
            predicted=group.predicted[i],
            probability=NAN if target.probability is None else target.probability,
            forward=float(explanation.spent.get("forward", NAN)),
            backward=float(explanation.spent.get("backward", 0.0)),
            relevance=float(explanation.spent.get("relevance", 0.0)),
        )

    def given(self, group: ExampleGroup, method: str) -> dict[str, Any]:
        """What a metric can be measured on."""
        explanation, probe = group.explanations[method], group.base["probe"]
        size = encoded_size_of(probe.encoded)
        unknown = np.full(size or (1, 1), -1, dtype=np.int8)
        return {
            "explanation": explanation,
            "probe": probe,
            "label": torch.tensor([one.label for one in group.cases]),
            "mask": [unknown if one.mask is None else one.mask for one in group.cases],
            "rationale": [one.rationale or make_empty_rationale(one) for one in group.cases],
            "rerun": Rerun(self.model, group.encoded, explanation),
            "others": {label: other for label, other in group.explanations.items() if label != method},
        }


def fill_row(bare: Row, found: Measurement, i: int) -> Row:
    row = replace(bare, value=float(found.value[i]), curve=as_floats(found.curve, i), parts=as_floats(found.parts, i))
    if math.isnan(row.value):
        return replace(row, state="undefined", reason="the metric has no number for this example")
    return row


def make_failed_row(one: PreparedExample, method: str, metric: str, reason: str) -> Row:
    return Row(one.place, one.name, method, metric, state="failed", reason=reason, label=one.label, note=one.note)


def as_floats(found: Tensor | None, i: int) -> tuple[float, ...]:
    return () if found is None else tuple(found[i].double().tolist())


def make_empty_rationale(one: PreparedExample) -> Rationale:
    """In place of what nobody marked, for a metric that is asked about the whole batch."""
    return Rationale((0,) * len(one.content.split()) if isinstance(one.content, str) else ())


def has_truth(one: PreparedExample, truth: str) -> bool:
    return {"label": one.label >= 0, "mask": one.mask is not None, "rationale": one.rationale is not None}[truth]


def measure_method_agreement(explanations: Mapping[str, Explanation], count: int) -> list[float]:
    """How alike the methods rank the units of each example: the mean over pairs, chance left out."""
    asked = [e for label, e in explanations.items() if not is_chance(label)]
    alike = [e for e in asked if e.scores.shape == asked[0].scores.shape]
    if len(alike) < 2:
        return [NAN] * count
    return [
        mean_rank_correlation(torch.stack([e.scores[i].double() for e in alike]), alike[0].tokens[i])
        for i in range(count)
    ]


def mean_rank_correlation(scores: Tensor, tokens: Tokens) -> float:
    """The mean rank correlation of [method unit]."""
    if isinstance(tokens, Pieces):
        scores = scores[:, ~(torch.tensor(tokens.padding) | torch.tensor(tokens.special))]
    rho = rank_correlation(scores)
    return float(rho[torch.ones_like(rho).triu(1).bool()].nanmean())


def is_chance(label: str) -> bool:
    return label.split("(")[0] == "chance"


def encoded_size_of(encoded: EncodedBatch) -> tuple[int, int] | None:
    shape = encoded.inputs[encoded.main].shape
    return (shape[-2], shape[-1]) if len(shape) == 4 else None


# --- failures ---------------------------------------------------------------------------------------------------------


def reason_of(error: Exception) -> str:
    """Why something failed, in one line. Memory that ran out is nobody's fault: it stops the run."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        raise error
    message = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, InputError) or hasattr(error, "exit_code") else f"{type(error).__name__}: "
    return f"{kind}{message}"[:MAX_REASON_LENGTH]


def find_failure(attempt: Any) -> str | None:
    try:
        attempt()
    except Exception as error:
        return reason_of(error)
    return None


# --- cases ------------------------------------------------------------------------------------------------------------


def prepare_example(model: Model, data: Data, place: int) -> PreparedExample:
    """One example in the model's terms."""
    one = data.examples[place]
    missing: dict[str, str] = {}
    label = find_class_index(model, one, missing)
    try:
        content = one.load()
        if model.kind == "image":
            content = as_image(content)
    except Exception as error:
        return PreparedExample(place, one.name, label=label, failure=reason_of(error))
    notes = ["with a label that is none of the model's classes"] if one.label is not None and "label" in missing else []
    if model.kind == "text" and isinstance(content, str):
        shorter = cut_to_fit(model, content)
        notes += [f"cut to {model.max_length} tokens"] if shorter != content else []
        content = shorter
    return PreparedExample(
        place,
        one.name,
        content,
        label,
        prepare_mask(model, data, one, content, missing),
        prepare_rationale(one, missing),
        missing,
        note=NOTE_SEPARATOR.join(notes),
    )


def find_class_index(model: Model, one: Example, missing: dict[str, str]) -> int:
    """The model's number for the true class, -1 where it has none."""
    if one.label is None:
        missing["label"] = "there is no label"
        return -1
    if isinstance(one.label, int):
        if model.labels is not None and one.label >= len(model.labels):
            missing["label"] = f"the label {one.label} is none of the model's {len(model.labels)} classes"
            return -1
        return one.label
    known = {normalise_class_name(label): i for i, label in enumerate(model.labels or ())}
    found = known.get(normalise_class_name(one.label), -1)
    if found < 0:
        missing["label"] = f"the label {one.label!r} is none of the model's classes"
    return found


def normalise_class_name(label: str) -> str:
    """Folders write great_pyrenees where a model says Great Pyrenees."""
    return " ".join(label.replace("_", " ").replace("-", " ").casefold().split())


def cut_to_fit(model: Model, content: str) -> str:
    """The beginning of a text, as much as the model takes."""
    try:
        cut = texts.tokenize_text(model.tokenizer, content, "the text")
    except InputError:
        return content  # it will fail when it is encoded, with the reason
    if model.max_length is None or len(cut) <= model.max_length:
        return content
    special = sum(cut.special)
    ends = [span[1] for span in cut.spans if span is not None]
    for count in range(model.max_length - special, 0, -1):
        shorter = content[: ends[count - 1]]
        if len(texts.tokenize_text(model.tokenizer, shorter, "the text")) <= model.max_length:
            return shorter
    return content


def prepare_mask(model: Model, data: Data, one: Example, content: Any, missing: dict[str, str]) -> np.ndarray | None:
    if one.mask is None:
        missing["mask"] = "there is no mask"
        return None
    try:
        mask = align_mask(read_mask(one.load_mask(), data.mask_values), content_size_of(content), model)
    except Exception as error:
        missing["mask"] = reason_of(error)
        return None
    if not (mask == 1).any() or not (mask == 0).any():
        missing["mask"] = f"the mask has no {'object' if not (mask == 1).any() else 'background'}"
        return None
    return mask


def content_size_of(content: Any) -> tuple[int, int]:
    """Width and height of a picture, or of the pixels a model takes."""
    if isinstance(content, Image.Image):
        return content.size
    tensors = content.values() if isinstance(content, Mapping) else [content]
    pixels = next((t for t in tensors if isinstance(t, Tensor) and t.dim() in (3, 4)), None)
    if pixels is None:
        raise InputError("This input is no picture, so a mask has nothing to lie on.")
    return pixels.shape[-1], pixels.shape[-2]


def prepare_rationale(one: Example, missing: dict[str, str]) -> Rationale | None:
    """One mark for each word of the whole text, also where the model sees only its beginning."""
    if one.rationale is None or not isinstance(one.content, str):
        missing["rationale"] = "nobody was asked for evidence"
        return None
    marks, start = [], 0
    for word in one.content.split():
        start = one.content.index(word, start)
        end = start + len(word)
        marks.append(int(any(a < end and start < b for a, b in one.rationale)))
        start = end
    if not any(marks):
        missing["rationale"] = "no word is marked as evidence"
        return None
    return Rationale(tuple(marks), "word")
