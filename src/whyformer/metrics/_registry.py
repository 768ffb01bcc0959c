"""A metric is a plain function: what stands before the star it is measured on, what stands after are its settings.

    @metric(paper="DeYoung et al., ACL 2020", better="higher", kind="faithfulness")
    def comprehensiveness(explanation, probe, *, fractions=(0.01, 0.05, 0.1, 0.2, 0.5)): ...

    METRICS["comprehensiveness"].needs == ("explanation", "probe")

    chosen = choose("aopc", {"preset": "released", "fill": "pad"})
    measured = measure(chosen, {"explanation": e, "probe": probe})
    measured.value                                      [batch] float64, NaN where it is undefined

The decorator hands the function back unchanged, so in a test it is just called. A preset is a set of settings with a
name: `paper` is what the authors wrote down, `released` what their code computes where that differs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from whyformer._plain.deprecation import rename_keywords, warn_renamed
from whyformer.errors import MetricError, suggest_nearest

METRICS: dict[str, "Metric"] = {}

# What a metric can be measured on.
METRIC_INPUTS = {
    "explanation": "Explanation of a batch, by one method",
    "probe": "Probe on the same batch and targets: the model again",
    "label": "[batch] long: the true class, -1 where it is not known",
    "mask": "one [height width] array an example: 1 object, 0 background, -1 ignored; aligned to the model's input",
    "rationale": "one Rationale (or a list of 0 and 1) an example: which words people marked",
    "rerun": "Rerun: the same method and settings on other inputs, targets or weights",
    "others": "mapping from the label of another method to its Explanation of the same batch",
}
GROUND_TRUTHS = ("label", "mask", "rationale")
METRIC_KINDS = ("faithfulness", "localisation", "plausibility", "stability", "discrimination", "sanity", "agreement")

MetricKind = Literal[
    "faithfulness", "localisation", "plausibility", "stability", "discrimination", "sanity", "agreement"
]
PartsCombiner: TypeAlias = Callable[[Tensor], float]


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a metric found: one number for each example."""

    value: Tensor  # [batch] float64, NaN where it is undefined for that example
    curve: Tensor | None = None  # [batch step]
    at: tuple[float, ...] = ()  # where the steps of the curve are, e.g. the share that was removed
    parts: Tensor | None = None  # [batch part]: what the metric's `combine` makes the figure of a data set from


@dataclass(frozen=True)
class Rationale:
    """What people marked in one text: 1 for each character, word (what stands between blanks) or token that counts.

    There may be more marks than the text the model saw has words or characters: what was cut off counts as missed.
    """

    marks: Sequence[int]
    of: Literal["character", "word", "token"] = "word"


@dataclass(frozen=True)
class Metric:
    name: str
    compute: Callable[..., Tensor | Measurement]
    needs: tuple[str, ...]
    settings: Mapping[str, Any]  # name -> default
    paper: str
    better: Literal["higher", "lower"]
    kind: MetricKind
    needs_truth: Literal["label", "mask", "rationale"] | None
    combine: PartsCombiner | None = (
        None  # [example part] -> the figure of the whole data set; None: the mean of the values
    )
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only: Literal["images", "texts"] | None = None
    across_examples: bool = False  # it looks at other examples of the batch, so a batch of one is undefined

    @property
    def summary(self) -> str:
        """The first line of the docstring: what the number means."""
        return (inspect.getdoc(self.compute) or "").split("\n")[0]


@rename_keywords(across="across_examples")
def metric(
    *,
    paper: str,
    better: Literal["higher", "lower"],
    kind: MetricKind,
    needs_truth: Literal["label", "mask", "rationale"] | None = None,
    combine: PartsCombiner | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    only: Literal["images", "texts"] | None = None,
    across_examples: bool = False,
) -> Callable[[Callable[..., Tensor | Measurement]], Callable[..., Tensor | Measurement]]:
    """Register a function as a metric under its own name."""
    only = rename_kind_of_input(only)

    def register(compute: Callable[..., Tensor | Measurement]) -> Callable[..., Tensor | Measurement]:
        METRICS[compute.__name__] = describe_metric(
            compute,
            paper=paper,
            better=better,
            kind=kind,
            needs_truth=needs_truth,
            combine=combine,
            presets=presets or {},
            only=only,
            across_examples=across_examples,
        )
        return compute

    return register


def rename_kind_of_input(only: Any) -> Literal["images", "texts"] | None:
    """Accept the old spelling only="pictures"."""
    if only == "pictures":
        warn_renamed('only="pictures" of metric()', 'only="images"', stacklevel=5)
        return "images"
    return only


def rename_need(need: str, function: str) -> str:
    """Accept the old name of a parameter: `again` for `rerun`."""
    if need == "again":
        warn_renamed(f"The parameter again of {function}()", "rerun", stacklevel=6)
        return "rerun"
    return need


def describe_metric(compute: Callable[..., Tensor | Measurement], **facts: Any) -> Metric:
    """Read needs and settings off a signature, and refuse what cannot be right."""
    parameters = inspect.signature(compute).parameters.values()
    needs = tuple(rename_need(p.name, compute.__name__) for p in parameters if p.kind is not p.KEYWORD_ONLY)
    settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if strange := [need for need in needs if need not in METRIC_INPUTS]:
        raise MetricError(
            f"{compute.__name__}() asks for {', '.join(strange)}; a metric can be given {', '.join(METRIC_INPUTS)}. "
            "Settings go after a star in the signature."
        )
    if facts["better"] not in ("higher", "lower") or facts["kind"] not in METRIC_KINDS:
        raise MetricError(
            f"{compute.__name__}() must say better='higher' or 'lower', and a kind out of {', '.join(METRIC_KINDS)}; "
            f"it says {facts['better']!r} and {facts['kind']!r}."
        )
    if facts.get("needs_truth") is not None and facts["needs_truth"] not in needs:
        raise MetricError(f"{compute.__name__}() says it needs {facts['needs_truth']!r} but does not ask for it.")
    for preset, chosen in facts.get("presets", {}).items():
        if unknown := [name for name in chosen if name not in settings]:
            raise MetricError(
                f"Preset {preset!r} of {compute.__name__}() sets {', '.join(unknown)}, which is not there."
            )
    return Metric(compute.__name__, compute, needs, settings, **facts)


MetricLike: TypeAlias = "str | Metric | Callable[..., Tensor | Measurement] | partial[Tensor | Measurement]"


def find_metric(wanted: MetricLike) -> tuple[Metric, dict[str, Any]]:
    """The metric meant by a name, a registered function or a `partial` of one, and the settings it brings along."""
    if isinstance(wanted, Metric):
        return wanted, {}
    if isinstance(wanted, partial):
        found, settings = find_metric(wanted.func)
        return found, settings | wanted.keywords
    if isinstance(wanted, str):
        if wanted not in METRICS:
            known = ", ".join(sorted(METRICS))
            raise MetricError(f"No metric {wanted!r}.{suggest_nearest(wanted, METRICS)} There are: {known}.")
        return METRICS[wanted], {}
    for known_metric in METRICS.values():
        if known_metric.compute is wanted:
            return known_metric, {}
    raise MetricError(f"{wanted!r} is not a metric. Give a name, or a function decorated with @whyformer.metric.")


@dataclass(frozen=True)
class MetricCall:
    """A metric with all its settings."""

    metric: Metric
    settings: dict[str, Any]
    preset: str | None = None

    @property
    def needs_truth(self) -> str | None:
        """What must be known of the data with these settings: `against="prediction"` needs no label."""
        return self.metric.needs_truth if self.settings.get("against", "label") == "label" else None


def choose_metric(wanted: MetricLike, settings: Mapping[str, Any] | None = None) -> MetricCall:
    """The metric meant, its settings checked and completed: those given, then the preset's, then the defaults."""
    found, brought = find_metric(wanted)
    given = {**brought, **(settings or {})}
    preset = given.pop("preset", None)
    known = [*found.settings, "preset"]
    for name in given:
        if name not in found.settings:
            raise MetricError(
                f"{found.name} has no setting {name!r}.{suggest_nearest(name, known)} Its settings: {', '.join(known)}."
            )
    if preset not in (None, "paper", *found.presets):
        presets = ", ".join(dict.fromkeys(["paper", *found.presets]))
        raise MetricError(
            f"{found.name} has no preset {preset!r}.{suggest_nearest(str(preset), found.presets)} There are: {presets}."
        )
    return MetricCall(found, {**found.settings, **found.presets.get(preset or "", {}), **given}, preset)


def measure(chosen: MetricCall, given: Mapping[str, Any]) -> Measurement:
    """Call the metric with what it needs out of `given`, and hold it to one float64 number an example."""
    name = chosen.metric.name
    if missing := [need for need in chosen.metric.needs if need not in given]:
        raise MetricError(f"{name} is measured on {', '.join(chosen.metric.needs)}; {', '.join(missing)} is not given.")
    found = chosen.metric.compute(*(given[need] for need in chosen.metric.needs), **chosen.settings)
    measured = found if isinstance(found, Measurement) else Measurement(found)
    batch = len(given["explanation"]) if "explanation" in given else len(measured.value)
    if measured.value.shape != (batch,) or measured.value.dtype != torch.float64:
        raise MetricError(
            f"{name} returned {list(measured.value.shape)} {measured.value.dtype} for {batch} examples. "
            "A metric returns one float64 number an example."
        )
    if chosen.metric.combine is not None and measured.parts is None:
        raise MetricError(f"{name} has a figure for the whole data set but returned no parts for it.")
    return measured


def combine_values(chosen: Metric, values: Tensor, parts: Tensor | None = None) -> float:
    """The metric on a data set: made of the parts where it says how, else the mean of the defined values."""
    if chosen.combine is not None and parts is not None:
        kept = parts[~parts.isnan().any(1)]
        return chosen.combine(kept) if len(kept) else float("nan")
    return float(values.nanmean())


def list_metrics() -> list[dict[str, Any]]:
    """All metrics as rows for `whyformer metrics`, sorted by what they are about and by name."""
    ordered = sorted(METRICS.values(), key=lambda one: (METRIC_KINDS.index(one.kind), one.name))
    return [
        {
            "name": one.name,
            "summary": one.summary,
            "kind": one.kind,
            "better": one.better,
            "needs": list(one.needs),
            "needs_truth": one.needs_truth,
            "only": one.only,
            "settings": dict(one.settings),
            "presets": {name: dict(settings) for name, settings in one.presets.items()},
            "paper": one.paper,
        }
        for one in ordered
    ]


def format_metrics() -> str:
    """The metrics as plain text, one after the other under what they are about."""
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
