"""What judge() measures: methods, metrics and the explained class, checked before anything runs."""

import operator
from collections.abc import Mapping
from typing import Any

import whyformer.metrics  # noqa: F401 (fills METRICS)
from whyformer._engine import TargetKind, TargetNames
from whyformer._explain.method_call import MethodCall, MethodLike, label_methods
from whyformer._model import Model
from whyformer._plain.setting_checks import quote_value
from whyformer._runs.arguments import as_argument_list
from whyformer.data import Data
from whyformer.errors import InputError, MethodError, MetricError, TargetError
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS, MetricCall, choose_metric, find_metric
from whyformer.targets import is_target_text, parse

CHANCE = "chance"
# The metrics used if none are named: by the kind of input, and by the ground truth that the data has.
DEFAULT_METRICS = {
    "image": ("positive_perturbation", "negative_perturbation"),
    "text": ("comprehensiveness", "sufficiency"),
    "tensors": ("comprehensiveness", "sufficiency"),
    "mask": ("pixel_accuracy", "mean_average_precision", "mean_iou"),
    "rationale": ("token_f1", "auprc"),
}


def choose_judged_methods(methods: Any) -> dict[str, MethodCall]:
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


def read_judged_target(target: Any, model: Model) -> Any:
    """The target as explain() takes it: a text such as "group:cat,dog" becomes a target of whyformer.targets."""
    if target is None:
        return "predicted"
    return parse(target) if is_target_text(target, model.labels) else target


def write_judged_target(target: Any) -> Any:
    """The target as it is written into a plan: the text of a target, a class as it is."""
    return str(target) if isinstance(target, TargetKind) else target


def check_judged_target(target: Any, model: Model) -> None:
    """Refuse a target that is not a class of the model and none of whyformer.targets."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return
    if isinstance(target, TargetKind):
        return
    if not isinstance(target, str) and not is_class_number(target):
        raise TargetError(
            "The target of judge() is None (the predicted class), 'label', one class for all examples, or one of "
            f"whyformer.targets, got {quote_value(target)}."
        )
    if model.labels is not None:
        TargetNames(model, len(model.labels), is_language=False).index(target)


def is_class_number(target: Any) -> bool:
    """Whether this is a whole number >= 0, of Python, numpy or torch."""
    try:
        return not isinstance(target, bool) and getattr(target, "ndim", 0) == 0 and operator.index(target) >= 0
    except TypeError:
        return False


def choose_judged_metrics(metrics: Any, model: Model, data: Data) -> dict[str, MetricCall]:
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
            taken = "texts" if other == "images" else "images"
            raise InputError(
                f"{label} is for {metric.only}; {model.name} takes {taken}. `whyformer metrics` lists others.",
                code="E_METRIC",
            )
        chosen[label] = choose_metric(wanted)
    return chosen


def choose_default_metrics(model: Model, data: Data) -> dict[str, MetricCall]:
    """The default metrics for this kind of input and for the ground truth that the data has."""
    names = list(DEFAULT_METRICS[model.kind])
    if any(example.mask is not None for example in data.examples):
        names += DEFAULT_METRICS["mask"]
    if any(example.rationale for example in data.examples):
        names += DEFAULT_METRICS["rationale"]
    has_labels = any(example.label is not None for example in data.examples)
    chosen: dict[str, MetricCall] = {}
    for name in names:
        needs_labels = METRICS[name].needs_truth == "label"
        settings = {"against": "prediction"} if needs_labels and not has_labels else {}
        chosen[format_metric_label(name, settings)] = choose_metric(name, settings)
    return chosen


def format_metric_label(name: str, settings: Mapping[str, Any]) -> str:
    """'token_f1', or 'token_f1(k=5)'."""
    written = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
    return f"{name}({written})" if written else name
