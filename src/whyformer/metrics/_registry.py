"""A metric is a plain function: parameters before the star are its inputs, parameters after it are its settings.

    @metric(paper="DeYoung et al., ACL 2020", better="higher", kind="faithfulness")
    def comprehensiveness(explanation, probe, *, fractions=(0.01, 0.05, 0.1, 0.2, 0.5)): ...

    METRICS["comprehensiveness"].needs == ("explanation", "probe")

    chosen = choose_metric("aopc", {"preset": "released", "fill": "pad"})
    measured = measure(chosen, {"explanation": e, "probe": probe})
    measured.value                                      [batch] float64, NaN where it is undefined

The decorator returns the function unchanged, so a test can call it directly. A preset is a named set of settings:
`paper` is what the authors describe, `released` what their code computes if that differs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor

from whyformer._plain.setting_checks import quote_value, read_settings
from whyformer._plain.small_table import make_small_table
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import MetricError, suggest_nearest
from whyformer.methods._registry import METHODS, Setting


class MetricTable(dict[str, "Metric"]):
    """Metrics by name, which display as a table."""

    def __repr__(self) -> str:
        return f"<{len(self)} metrics: {', '.join(sorted(self))}>"

    def _repr_html_(self) -> str:
        rows = [(one.name, one.summary, one.better, str(one.kind), one.paper) for _, one in sorted(self.items())]
        return make_small_table(
            ("metric", "what the number means", "better", "kind", "paper"), rows, title=f"{len(self)} metrics"
        )


METRICS: dict[str, "Metric"] = MetricTable()

# The inputs a metric can ask for.
METRIC_INPUTS = {
    "explanation": "Explanation of a batch, by one method",
    "probe": "Probe: answers of the model to variants of the same batch, for the same targets",
    "label": "[batch] long: the true class, -1 if unknown",
    "mask": "one [height width] array per example: 1 object, 0 background, -1 ignored; aligned to the model's input",
    "rationale": "one Rationale (or a list of 0 and 1) per example: which words people marked",
    "rerun": "Rerun: the same method and settings on other inputs, targets or weights",
    "others": "mapping from the label of another method to its Explanation of the same batch",
}
MetricKind = Literal[
    "faithfulness", "localisation", "plausibility", "stability", "discrimination", "sanity", "agreement", "form"
]
METRIC_KINDS: tuple[str, ...] = get_args(MetricKind)
PartsCombiner: TypeAlias = Callable[[Tensor], float]


@dataclass(frozen=True, eq=False)
class Measurement:
    """The result of a metric: one number per example."""

    value: Tensor  # [batch] float64, NaN if undefined for that example
    curve: Tensor | None = None  # [batch step]
    at: tuple[float, ...] = ()  # the x values of the curve, e.g. the fraction removed
    parts: Tensor | None = None  # [batch part]: the metric's `combine` computes the value of a data set from these


@dataclass(frozen=True)
class Rationale:
    """What people marked in one text: 1 for each character, word (separated by blanks) or token that counts.

    There may be more marks than words or characters in the text the model saw: marks beyond it count as missed.
    """

    marks: Sequence[int]
    of: Literal["character", "word", "token"] = "word"
    spans: tuple[tuple[int, int], ...] = ()  # the marked characters, if they are known more exactly than by words


RationaleLike: TypeAlias = Rationale | Sequence[int] | Tensor | np.ndarray | None  # None: not annotated


class MetricFacts(TypedDict, total=False):
    """What several metrics declare alike."""

    better: Literal["higher", "lower"]
    kind: MetricKind
    needs_truth: Literal["label", "mask", "rationale"] | None
    only: Literal["images", "texts"] | None


@dataclass(frozen=True)
class Metric:
    name: str
    compute: Callable[..., Tensor | Measurement]
    needs: tuple[str, ...]
    settings: Mapping[str, Setting]  # name -> default
    paper: str
    better: Literal["higher", "lower"]
    kind: MetricKind
    needs_truth: Literal["label", "mask", "rationale"] | None
    combine: PartsCombiner | None = None  # [example part] -> value of a data set; None: the mean of the values
    presets: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)
    only: Literal["images", "texts"] | None = None
    across_examples: bool = False  # it uses other examples of the batch, so it is undefined for a batch of one

    @property
    def summary(self) -> str:
        """The first line of the docstring: what the number means."""
        return (inspect.getdoc(self.compute) or "").split("\n")[0]


def metric(
    *,
    paper: str,
    better: Literal["higher", "lower"],
    kind: MetricKind,
    needs_truth: Literal["label", "mask", "rationale"] | None = None,
    combine: PartsCombiner | None = None,
    presets: Mapping[str, Mapping[str, Setting]] | None = None,
    only: Literal["images", "texts"] | None = None,
    across_examples: bool = False,
) -> Callable[[Callable[..., Tensor | Measurement]], Callable[..., Tensor | Measurement]]:
    """Register a function as a metric under its own name."""

    def register(compute: Callable[..., Tensor | Measurement]) -> Callable[..., Tensor | Measurement]:
        METRICS[compute.__name__] = describe_metric(
            compute, paper=paper, better=better, kind=kind, needs_truth=needs_truth, combine=combine,
            presets=presets or {}, only=only, across_examples=across_examples,
        )  # fmt: skip
        return compute

    return register


def describe_metric(compute: Callable[..., Tensor | Measurement], **facts: Any) -> Metric:
    """Read inputs and settings from a signature; an error if they are inconsistent."""
    parameters = inspect.signature(compute).parameters.values()
    needs = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if strange := [need for need in needs if need not in METRIC_INPUTS]:
        raise MetricError(
            f"{compute.__name__}() asks for {', '.join(strange)}; the inputs of a metric are "
            f"{', '.join(METRIC_INPUTS)}. Settings go after a star in the signature."
        )
    if facts["better"] not in ("higher", "lower") or facts["kind"] not in METRIC_KINDS:
        raise MetricError(
            f"{compute.__name__}() needs better='higher' or 'lower' and a kind out of {', '.join(METRIC_KINDS)}; "
            f"got better={facts['better']!r}, kind={facts['kind']!r}."
        )
    if facts.get("needs_truth") is not None and facts["needs_truth"] not in needs:
        raise MetricError(
            f"{compute.__name__}() has needs_truth={facts['needs_truth']!r} but no parameter of that name."
        )
    for preset, chosen in facts.get("presets", {}).items():
        if unknown := [name for name in chosen if name not in settings]:
            raise MetricError(
                f"Preset {preset!r} of {compute.__name__}() sets {', '.join(unknown)}, which is not a setting."
            )
    return Metric(compute.__name__, compute, needs, settings, **facts)


MetricLike: TypeAlias = "str | Metric | Callable[..., Tensor | Measurement] | partial[Tensor | Measurement]"


def find_metric(wanted: MetricLike) -> tuple[Metric, dict[str, Setting]]:
    """The metric for a name, a registered function or a `partial` of one, and the settings of the partial."""
    if isinstance(wanted, Metric):
        return wanted, {}
    if isinstance(wanted, partial):
        found, settings = find_metric(wanted.func)
        return found, settings | wanted.keywords
    if isinstance(wanted, str):
        if wanted in METRICS:
            return METRICS[wanted], {}
        if wanted in METHODS:
            raise MetricError(f"{wanted!r} is a method, not a metric. Pass it as methods=, or with -m.")
        known = ", ".join(sorted(METRICS))
        raise MetricError(f"No metric {wanted!r}.{suggest_nearest(wanted, METRICS)} Available: {known}.")
    for known_metric in METRICS.values():
        if known_metric.compute is wanted:
            return known_metric, {}
    raise MetricError(f"{wanted!r} is not a metric. Give a name, or a function decorated with @whyformer.metric.")


@dataclass(frozen=True)
class MetricCall:
    """A metric with all its settings."""

    metric: Metric
    settings: dict[str, Setting]
    preset: str | None = None

    @property
    def needs_truth(self) -> str | None:
        """The ground truth that these settings need: `against="prediction"` needs no label."""
        return self.metric.needs_truth if self.settings.get("against", "label") == "label" else None


def choose_metric(wanted: MetricLike, settings: Mapping[str, Setting] | None = None) -> MetricCall:
    """The metric with checked and completed settings: explicit ones, then the preset's, then the defaults."""
    found, brought = find_metric(wanted)
    given = {**brought, **(settings or {})}
    preset = given.pop("preset", None)
    known = [*found.settings, "preset"]
    for name in given:
        if name not in found.settings:
            hint = suggest_nearest(str(name), known)
            raise MetricError(
                f"{found.name} has no setting {name!r}.{hint} Its settings: {', '.join(known)}.", code="E_OPTION"
            )
    presets = dict.fromkeys(["paper", *found.presets])
    if preset is not None and (not isinstance(preset, str) or preset not in presets):
        hint = suggest_nearest(preset, presets) if isinstance(preset, str) else ""
        raise MetricError(
            f"{found.name} has no preset {quote_value(preset)}.{hint} Available: {', '.join(presets)}.", code="E_OPTION"
        )
    chosen = {**found.settings, **found.presets.get(preset or "", {}), **given}
    return MetricCall(found, read_settings(found.compute, chosen), preset)


@neutral_torch()
def measure(chosen: MetricCall, given: Mapping[str, Any]) -> Measurement:
    """Call the metric with the inputs it needs from `given`; it must return one float64 number per example."""
    name = chosen.metric.name
    if missing := [need for need in chosen.metric.needs if need not in given]:
        raise MetricError(f"{name} needs {', '.join(chosen.metric.needs)}; missing: {', '.join(missing)}.")
    found = chosen.metric.compute(*(given[need] for need in chosen.metric.needs), **chosen.settings)
    measured = found if isinstance(found, Measurement) else Measurement(found)
    batch = len(given["explanation"]) if "explanation" in given else len(measured.value)
    if measured.value.shape != (batch,) or measured.value.dtype != torch.float64:
        raise MetricError(
            f"{name} returned {list(measured.value.shape)} {measured.value.dtype} for {batch} examples. "
            "A metric must return one float64 number per example."
        )
    if chosen.metric.combine is not None and measured.parts is None:
        raise MetricError(f"{name} combines parts into the value of a data set, but returned no parts.")
    return measured


def list_metrics() -> list[dict[str, Any]]:
    """All metrics as rows for `whyformer metrics`, sorted by kind and name."""
    ordered = sorted(METRICS.values(), key=lambda entry: (METRIC_KINDS.index(entry.kind), entry.name))
    shown = ("name", "summary", "kind", "better", "needs", "needs_truth", "only", "settings", "presets", "paper")
    rows = [{name: getattr(entry, name) for name in shown} for entry in ordered]
    for row in rows:
        presets = {name: dict(settings) for name, settings in row["presets"].items()}
        row |= {"needs": list(row["needs"]), "settings": dict(row["settings"]), "presets": presets}
    return rows


def format_metrics() -> str:
    """The metrics as plain text, grouped by kind."""
    lines: list[str] = []
    under = None
    for row in list_metrics():
        if row["kind"] != under:
            under = row["kind"]
            lines += ([""] if lines else []) + [under]
        facts = [
            f"{row['better']} is better",
            *([f"needs a {row['needs_truth']}"] if row["needs_truth"] else []),
            *([f"{row['only']} only"] if row["only"] else []),
            *([f"presets: {', '.join(row['presets'])}"] if row["presets"] else []),
            row["paper"],
        ]
        lines += [f"  {row['name']}", f"    {row['summary']}", f"    {'; '.join(facts)}"]
    return "\n".join(lines)
