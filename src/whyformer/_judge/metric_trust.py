"""Which metric to believe on this model and data: judge_metrics(), and its result.

Two tests of a metric, neither of which needs people:

* **degraded explanations**: a method's maps with more and more noise (degradation.py). The metric must rank less noise
  above more noise. Each pair of neighbouring levels holds, is reversed or is undecided, by a paired bootstrap.
* **exact evidence**, where the data has it (demo/shapes, demo/queried, demo/creatures): the metric ranks methods; so
  does the share of their K highest pixels that lie on the evidence (rank_in_mask), which is the truth there. Their rank
  correlation, with a bootstrap interval over examples.

A metric that fails the first test says nothing here. One that passes may still reward the wrong thing, which only
evidence shows.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from whyformer._engine import TargetLike
from whyformer._explain.default_method import choose_default_method
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer._judge.controls import is_control
from whyformer._judge.degradation import LEVELS, degrade_method, name_level
from whyformer._judge.judgement import Judgement, encode_utf8
from whyformer._judge.order import MIN_EXAMPLES, PairOrder, compare_pairs
from whyformer._judge.run import judge
from whyformer._judge.table import collect_values, combine_of, format_csv, format_mean
from whyformer._plain.statistics import draw_resamples, spearman
from whyformer._runs.arguments import ColumnNames, as_argument_list, read_run_data
from whyformer._runs.choice import MetricsLike, choose_judged_methods
from whyformer.data import Data
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.errors import InputError
from whyformer.metrics._registry import choose_metric
from whyformer.results.result import Result
from whyformer.show.blocks import DataTable, Paragraph, Report
from whyformer.show.markdown_report import write_table
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

EVIDENCE_METRIC = "rank_in_mask"
MIN_METHODS = 3  # to compare two rankings of methods
TRUST_WORDS = {
    "believable": "every level ranks above the next",
    "coarse": "the map ranks above noise, but not every level above the next",
    "not believable": "more noise is not ranked below less",
    "undecided": f"fewer than {MIN_EXAMPLES} examples have a value",
}


@dataclass(frozen=True)
class TrustLine:
    """One metric: its mean at each level of noise, and which orders hold."""

    metric: str
    means: tuple[float, ...]  # by level
    steps: tuple[PairOrder, ...]  # each level against the next
    ends: PairOrder | None  # no noise against nothing but noise
    evidence: tuple[float, float, float] | None = None  # rank correlation with the exact evidence, and its interval

    @property
    def verdict(self) -> Literal["believable", "coarse", "not believable", "undecided"]:
        if self.ends is None or self.ends.count < MIN_EXAMPLES:
            return "undecided"
        if self.ends.verdict != "holds" or any(s.verdict == "reversed" for s in self.steps):
            return "not believable"
        return "believable" if all(step.verdict == "holds" for step in self.steps) else "coarse"


@dataclass(frozen=True, eq=False, repr=False)
class MetricTrust(Result):
    """How far each metric can be believed on this model and data."""

    method: str
    model: str
    data: str
    examples: int
    levels: tuple[float, ...]
    lines: tuple[TrustLine, ...]
    judgements: Sequence[Judgement] = field(default=(), repr=False)

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".csv": lambda trust: encode_utf8(format_csv(trust.text_rows())),
        ".md": lambda trust: encode_utf8(write_table(trust.text_rows())),
        ".txt": lambda trust: encode_utf8(trust.render(Screen(width=140, colours=None)) + "\n"),
    }

    def __repr__(self) -> str:
        found = ", ".join(f"{line.metric} {line.verdict}" for line in self.lines)
        return f"<MetricTrust on {self.examples} examples of {make_visible(self.data)}: {found}>"

    def records(self) -> list[dict[str, object]]:
        """One mapping per metric: its mean at each share of noise, and the verdict."""
        return [
            {
                "metric": one.metric,
                **{f"noise {level:g}": mean for level, mean in zip(self.levels, one.means, strict=True)},
            }
            | {"verdict": one.verdict, "with_evidence": None if one.evidence is None else one.evidence[0]}
            for one in self.lines
        ]

    def text_rows(self) -> list[list[str]]:
        """The table as text; the first row is the header."""
        header = ["metric", *(f"{level:.0%} noise" for level in self.levels), "levels in order", "verdict"]
        has_evidence = any(line.evidence is not None for line in self.lines)
        rows = [[*header, "with the evidence"] if has_evidence else header]
        for line in self.lines:
            held = sum(step.verdict == "holds" for step in line.steps)
            cells = [*map(format_mean, line.means), f"{held} of {len(line.steps)}", line.verdict]
            rows.append([line.metric, *cells, *([format_evidence(line.evidence)] if has_evidence else [])])
        return rows

    @property
    def about(self) -> str:
        return (
            f"Metrics on {self.examples} examples of {self.data}, {self.model}: the maps of {self.method} with noise. "
            + "; ".join(f"{word}: {meaning}" for word, meaning in TRUST_WORDS.items())
            + f". With the evidence: rank correlation with {EVIDENCE_METRIC} over methods."
        )

    def _report(self) -> Report:
        header, *rows = self.text_rows()
        return Report("Which metric to believe", [Paragraph(self.about, "dim"), DataTable(header, rows)])

    @property
    def failed(self) -> int:
        return sum(judgement.failed for judgement in self.judgements)


def format_evidence(evidence: tuple[float, float, float] | None) -> str:
    if evidence is None or evidence[0] != evidence[0]:
        return "-"
    return "{:+z.2f} [{:+z.2f}, {:+z.2f}]".format(*evidence)


def judge_metrics(
    model: ModelLike,
    data: DataLike,
    metrics: MetricsLike = None,
    method: MethodLike | None = None,
    *,
    methods: Literal["quick", "all"] | Sequence[MethodLike] | None = None,
    target: TargetLike = None,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    split: str | None = None,
    columns: ColumnNames | None = None,
    classes: ClassNames | None = None,
    levels: Sequence[float] = LEVELS,
    seed: int = 0,
) -> MetricTrust:
    """Whether metrics rank an explanation with less noise above the same with more, on this model and data.

    method: whose maps are degraded; by default the default method of the kind of input.
    methods: at least three methods whose ranking by each metric is compared with the ranking by the masks of the data.
        Only sensible where the masks are the exact evidence, as in the generated worlds.
    levels: shares of noise from 0 to 1, rising. out: a folder for rows and the table (metrics.csv, metrics.md).
    metrics, target, batch_size, limit, split, columns, classes: as for judge().
    """
    levels = check_levels(levels)
    explained = as_model(model)
    examples = read_run_data(data, split, columns, classes, limit=limit)
    base = method if method is not None else choose_default_method(explained.encode([examples.examples[0].load()]))
    (label,) = label_methods([base])
    if methods is not None:
        check_evidence(examples, methods)
    degraded = [degrade_method(base, level, seed) for level in levels]
    folder = None if out is None else Path(out)
    run = partial(judge, explained, examples, target=target, batch_size=batch_size, report=False)
    made = run(degraded, metrics, out=folder and folder / "degraded")
    judgements, evidence = [made], {}
    if methods is not None:
        wanted = list(made.rows.metrics) if metrics is None else as_argument_list(metrics)
        wanted += [] if EVIDENCE_METRIC in made.rows.metrics else [EVIDENCE_METRIC]
        judgements.append(run(methods, wanted, out=folder and folder / "methods"))
        evidence = compare_with_evidence(judgements[1])
    lines = tuple(make_trust_line(made, metric, label, levels, evidence.get(metric)) for metric in made.rows.metrics)
    trust = MetricTrust(label, explained.name, examples.name, len(examples), levels, lines, judgements)
    if folder is not None:
        for suffix in (".csv", ".md"):
            trust.save(folder / f"metrics{suffix}")
    return trust


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    found = tuple(float(level) for level in levels)
    if len(found) < 2 or list(found) != sorted(set(found)) or found[0] < 0 or found[-1] > 1:
        raise InputError(f"levels must be at least two rising numbers from 0 to 1, got {levels!r}.", code="E_OPTION")
    return found


def check_evidence(examples: Data, methods: MethodLike | Sequence[MethodLike]) -> None:
    """Refuse to compare without masks, or with too few methods."""
    if all(example.mask is None for example in examples.examples):
        raise InputError(f"methods= compares with masks, but {examples.name} has none.", code="E_DATA")
    count = sum(not is_control(label) for label in choose_judged_methods(methods))
    if count < MIN_METHODS:
        raise InputError(f"methods must be at least {MIN_METHODS}, got {count}.", code="E_OPTION")


def make_trust_line(
    made: Judgement, metric: str, label: str, levels: Sequence[float], evidence: tuple[float, float, float] | None
) -> TrustLine:
    rows, k = made.rows, made.rows.metrics.index(metric)
    chosen = choose_metric(metric.split("(")[0])  # settings do not change how the values of examples are combined
    names = [name_level(label, level) for level in levels]
    values = {name: collect_values(rows, rows.methods.index(name), k, chosen) for name in names}
    better = made.table.better[metric]
    pairs = [*pairwise(names), (names[0], names[-1])]
    orders = compare_pairs(pairs, values, better, combine_of(chosen))
    means = {line.method: line.mean for line in made.table.of(metric)}
    complete = len(orders) == len(pairs)
    return TrustLine(
        metric,
        tuple(means[name] for name in names),
        tuple(orders[:-1]) if complete else (),
        orders[-1] if complete else None,
        evidence,
    )


def compare_with_evidence(judgement: Judgement) -> dict[str, tuple[float, float, float]]:
    """For each metric, Spearman's correlation of its ranking of the methods with that of the evidence, and interval."""
    rows, table = judgement.rows, judgement.table
    kept = [m for m, name in enumerate(rows.methods) if not is_control(name)]
    truth = rows.value[:, kept][:, :, rows.metrics.index(EVIDENCE_METRIC)]
    found = {}
    for k, metric in enumerate(rows.metrics):
        if metric == EVIDENCE_METRIC:
            continue
        values = (1 if table.better[metric] == "higher" else -1) * rows.value[:, kept][:, :, k]
        complete = ~(np.isnan(values) | np.isnan(truth)).any(1)
        if complete.sum() >= 2:
            found[metric] = bootstrap_rank_correlation(values[complete], truth[complete])
    return found


def bootstrap_rank_correlation(values: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    """[example method] twice: Spearman's correlation over methods of the two means, with a 95 % interval."""
    middle = spearman(values.mean(0), truth.mean(0))
    drawn = [
        spearman(values[row].mean(0), truth[row].mean(0))
        for chunk in draw_resamples(len(values), np.random.default_rng(0))
        for row in chunk
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if not np.isnan(drawn).all() else (np.nan, np.nan)
    return middle, float(low), float(high)
