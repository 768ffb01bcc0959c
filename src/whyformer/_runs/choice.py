"""What judge() measures: methods, metrics and the explained class, checked before anything runs.

Data on which nothing can be measured is refused too: another kind of input, or without the ground truth of a metric.
"""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias

from PIL import Image

import whyformer.metrics  # noqa: F401 (fills METRICS)
from whyformer._engine import TargetKind, TargetLike, TargetNames
from whyformer._explain.diagnose import list_some
from whyformer._explain.method_call import MethodCall, MethodLike, label_methods
from whyformer._model import Model, TextPair
from whyformer._plain.setting_checks import quote_value
from whyformer._runs.arguments import as_argument_list
from whyformer._runs.preparation import find_class_index
from whyformer.data import Data
from whyformer.data.records import is_image_name
from whyformer.errors import InputError, MethodError, MetricError, TargetError
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS, MetricCall, MetricLike, choose_metric, find_metric
from whyformer.targets import is_target_text, parse

CHANCE = "chance"
MetricsLike: TypeAlias = "MetricLike | Sequence[MetricLike] | None"
RUN_TARGETS = ("predicted", "label")
# The metrics used if none are named: by the kind of input, and by the ground truth that the data has.
DEFAULT_METRICS = {
    "image": ("positive_perturbation", "negative_perturbation"),
    "text": ("comprehensiveness", "sufficiency"),
    "tensors": ("comprehensiveness", "sufficiency"),
    "mask": ("pixel_accuracy", "mean_average_precision", "mean_iou"),
    "rationale": ("token_f1", "auprc"),
}
DEFAULT_SETTINGS: dict[str, dict[str, Any]] = {"token_f1": {"k": "marked"}}  # as many words as people marked


def choose_judged_methods(methods: MethodLike | Sequence[MethodLike]) -> dict[str, MethodCall]:
    """The methods by label. Chance is always one of them; controls.py adds the other controls."""
    wanted: list[MethodLike]
    if isinstance(methods, str) and methods == "quick":
        wanted = [name for name, method in METHODS.items() if method.is_quick]
    elif isinstance(methods, str) and methods == "all":
        wanted = list(METHODS)
    else:
        wanted = as_argument_list(methods)
    if metric := next((name for name in wanted if isinstance(name, str) and name in METRICS), None):
        raise MethodError(f"{metric!r} is a metric, not a method. Pass it as metrics=, or with -k.")
    if not wanted:
        raise MethodError("There are no methods to judge. Name some, or pass methods='quick'.")
    chosen = label_methods(wanted)
    if not any(is_chance(label) for label in chosen):
        chosen |= label_methods(["chance"])
    return chosen


def is_chance(label: str) -> bool:
    return label.split("(")[0] == CHANCE


def read_run_target(target: TargetLike, model: Model) -> TargetLike:
    """The target as explain() takes it: a text such as "group:cat,dog" becomes a target of whyformer.targets.

    Refuses what is neither one of these nor a class of the model.
    """
    if target is None:
        return "predicted"
    if isinstance(target, str) and is_target_text(target, model.labels):
        target = parse(target)
    if isinstance(target, TargetKind) or (isinstance(target, str) and target in RUN_TARGETS):
        return target
    if not isinstance(target, str) and not is_class_number(target):
        raise TargetError(
            "The target of judge() is None (the predicted class), 'label', one class for all examples, or one of "
            f"whyformer.targets, got {quote_value(target)}."
        )
    if model.labels is not None and isinstance(target, str | SupportsIndex):
        TargetNames(model, len(model.labels), is_language=False).index(target)
    return target


def write_run_target(target: TargetLike) -> TargetLike:
    """The target as it is written into a plan: the text of a target, a class as it is."""
    return str(target) if isinstance(target, TargetKind) else target


def is_class_number(target: Any) -> bool:
    """Whether this is a whole number >= 0, of Python, numpy or torch."""
    try:
        return not isinstance(target, bool) and getattr(target, "ndim", 0) == 0 and operator.index(target) >= 0
    except TypeError:
        return False


def choose_judged_metrics(metrics: MetricsLike, model: Model, data: Data) -> dict[str, MetricCall]:
    """The metrics by label. A metric for another kind of input is refused."""
    if metrics is None:
        return choose_default_metrics(model, data)
    if not as_argument_list(metrics):
        raise MetricError("metrics is empty. Pass at least one metric, or omit it for the defaults.")
    other = {"image": "texts", "text": "images"}.get(model.kind)
    chosen: dict[str, MetricCall] = {}
    for wanted in as_argument_list(metrics):
        metric, settings = find_metric(wanted)
        label = format_metric_label(metric.name, settings)
        if label in chosen:
            raise MetricError(f"{label} is named twice. Measure it once, or with different settings.")
        if metric.only is not None and metric.only == other:
            raise InputError(
                f"{label} is for {metric.only}; {model.name} takes {model.kind}s. `whyformer metrics` lists others.",
                code="E_METRIC",
            )
        chosen[label] = choose_metric(wanted)
    return chosen


def choose_default_metrics(model: Model, data: Data) -> dict[str, MetricCall]:
    """The default metrics for this kind of input and for the ground truth that the data has."""
    reasons = {
        model.kind: True,
        "mask": any(example.mask is not None for example in data.examples),
        "rationale": any(example.rationale for example in data.examples),
    }
    names = [name for reason, applies in reasons.items() if applies for name in DEFAULT_METRICS[reason]]
    has_labels = any(example.label is not None for example in data.examples)
    chosen: dict[str, MetricCall] = {}
    for name in names:
        needs_labels = METRICS[name].needs_truth == "label"
        settings = {"against": "prediction"} if needs_labels and not has_labels else DEFAULT_SETTINGS.get(name, {})
        chosen[format_metric_label(name, settings)] = choose_metric(name, settings)
    return chosen


def format_metric_label(name: str, settings: Mapping[str, Any]) -> str:
    """'token_f1', or 'token_f1(k=5)'."""
    written = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
    return f"{name}({written})" if written else name


# --- unsuitable data --------------------------------------------------------------------------------------------------


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
