"""Data that judge() cannot measure anything on: another kind of input, or without the ground truth of a metric.

Refused before anything runs, since the result would be a table of dashes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from whyformer._engine import TargetLike
from whyformer._explain.diagnose import list_some
from whyformer._model import Model, TextPair
from whyformer._runs.preparation import find_class_index
from whyformer.data import Data
from whyformer.data.records import is_image_name
from whyformer.errors import InputError
from whyformer.metrics._registry import MetricCall

TRUTH_SOURCES = {  # where the ground truth that a metric needs is named
    "label": "columns={'label': ...} or --column label=NAME",
    "mask": "masks= of data.read() or --masks FOLDER",
    "rationale": "columns={'rationale': ...} or --column rationale=NAME",
}


def refuse_other_kind(model: Model, data: Data) -> None:
    """Refuse texts for a model of images, and images for one of texts."""
    kinds = {describe_content(example.content) for example in data.examples}
    taken = f"{model.kind}s"
    if model.kind != "tensors" and len(kinds) == 1 and not kinds & {taken, ""}:
        raise InputError(
            f"{data.name} contains {kinds.pop()}, but {model.name} takes {taken}. Choose another model with -M.",
            code="E_DATA",
        )


def describe_content(content: Any) -> str:
    """Whether the content of an example is a text or an image; "" if that shows only when it is loaded."""
    if isinstance(content, Path | Image.Image) or (isinstance(content, str) and is_image_name(content)):
        return "images"
    return "texts" if isinstance(content, str | TextPair) else ""


def refuse_missing_truth(model: Model, data: Data, metrics: Mapping[str, MetricCall], target: TargetLike) -> None:
    """Refuse to explain labels, or to measure only what needs ground truth, if no example has it."""
    asks_label = isinstance(target, str) and target == "label"
    if asks_label and (problem := describe_missing(model, data, "label", "target='label'")):
        raise InputError(problem, code="E_DATA")
    problems = [describe_missing(model, data, call.needs_truth, call.metric.name) for call in metrics.values()]
    if problems and all(problems):
        raise InputError(problems[0], code="E_DATA")


def describe_missing(model: Model, data: Data, truth: str | None, what: str) -> str:
    """Why no example has this ground truth, and where to name it; "" if one has it or none is needed."""
    if truth is None:
        return ""
    if all(getattr(example, truth) is None for example in data.examples):
        return (
            f"{what} needs a {truth} for each example, but {data.name} has none. Name them with {TRUTH_SOURCES[truth]}"
            f"{advise_prediction(what, truth)}."
        )
    is_foreign = truth == "label" and all(find_class_index(model, example, {}) < 0 for example in data.examples)
    return describe_foreign_labels(model, data, what) if is_foreign else ""


def describe_foreign_labels(model: Model, data: Data, what: str) -> str:
    """Which labels the data has, and which classes the model."""
    labels = list(dict.fromkeys(str(example.label) for example in data.examples if example.label is not None))
    classes = f"the classes of {model.name}, which have no names"
    if model.labels:
        classes = f"the {len(model.labels)} classes of {model.name} ({list_some(model.labels)})"
    return (
        f"{what} needs the true class, but no label of {data.name} ({list_some(labels)}) is one of {classes}. Name the "
        f"class of each label with classes={{...}} or --class LABEL=CLASS{advise_prediction(what, 'label')}."
    )


def advise_prediction(what: str, truth: str) -> str:
    """A metric of the true class can also be measured for the predicted one."""
    is_metric_of_class = truth == "label" and "=" not in what
    return f", or measure {what}(against='prediction')" if is_metric_of_class else ""
