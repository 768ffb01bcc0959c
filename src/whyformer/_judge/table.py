"""The table: for each metric, the methods from best to worst, with intervals and tests.

A mean is taken over the examples for which the metric has a number; figures of a whole data set (mean IoU) are made
from the parts of all examples. Intervals are bootstrap intervals over examples. Each method is tested against the best
one and against chance on the examples both have, with Holm's correction over the methods of a metric. "Best" is chosen
on the same examples, so a test against it is a little too hard on the others.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch

from whyformer._judge.bench import is_chance
from whyformer._judge.rows import RowTable
from whyformer._plain.statistics import Combiner, adjust_p_values, bootstrap, paired_test
from whyformer.metrics._registry import MetricCall as Measure

DIGITS = 6  # significant, in files: what a different processor changes stands behind them
MIN_COVERAGE = 0.9  # a method must have a number for so many of the examples that others have, to be called best
SIGNIFICANCE_LEVEL = 0.05
FEW_EXAMPLES = 30


@dataclass(frozen=True)
class Line:
    """One method under one metric."""

    metric: str
    method: str
    mean: float
    low: float  # of the 95 % interval
    high: float
    count: int  # examples with a number
    undefined: int
    missing: int
    failed: int
    p_best: float  # corrected; NaN for the best one itself
    p_chance: float
    forward: float  # passes through the model for one explanation, on average
    backward: float
    relevance: float
    rank: int
    is_best: bool
    beats_chance: bool | None  # None: cannot be told


@dataclass(frozen=True)
class Table:
    lines: tuple[Line, ...]
    better: Mapping[str, Literal["higher", "lower"]]
    kinds: Mapping[str, str]
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, repr=False)  # metric, method
    at: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.better)

    def of(self, metric: str) -> list[Line]:
        """Its lines, best first."""
        return sorted((line for line in self.lines if line.metric == metric), key=lambda line: line.rank)

    def best(self, metric: str) -> Line | None:
        return next((line for line in self.of(metric) if line.is_best), None)

    def tied(self, metric: str) -> list[Line]:
        """The best, and those that cannot be told from it."""
        return [line for line in self.of(metric) if line.is_best or line.p_best >= SIGNIFICANCE_LEVEL]

    def records(self) -> list[dict[str, Any]]:
        """The lines in the words of JSON, None where there is no number."""
        return [
            {name: None if value != value else value for name, value in asdict(line).items()}
            for metric in self.metrics
            for line in self.of(metric)
        ]

    def csv(self) -> str:
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        names = [one.name for one in fields(Line)]
        writer.writerow(names)
        for metric in self.metrics:
            writer.writerows([round_for_csv(asdict(line)[name]) for name in names] for line in self.of(metric))
        return sink.getvalue()

    def markdown(self) -> str:
        """As tables for a page, one for each metric."""
        parts = []
        for metric in self.metrics:
            head = ["method", "mean", "95 %", "n", "against the best", "against chance", "passes"]
            rows = [[line.method, *format_line(line)] for line in self.of(metric)]
            written = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
            parts.append(f"**{metric}** ({self.better[metric]} is better)\n\n{written}\n")
        return "\n".join(parts)


def format_line(line: Line) -> list[str]:
    """One line in words, without metric and method."""
    return [
        format_mean(line.mean),
        f"{format_mean(line.low)} to {format_mean(line.high)}" if line.low == line.low else "-",
        str(line.count),
        "best" if line.is_best else format_p_value(line.p_best),
        format_p_value(line.p_chance) + ("" if line.beats_chance is not False else " worse"),
        format_passes(line),
    ]


def format_passes(line: Line) -> str:
    """Through the model for one explanation: forward, and back for gradients and for relevance."""
    if line.forward != line.forward:
        return "-"
    back = line.backward + line.relevance
    return f"{line.forward:.4g}" + (f" + {back:.4g} back" if back else "")


def format_mean(number: float) -> str:
    return "-" if number != number else f"{number:.4g}" if abs(number) < 1000 else f"{number:.0f}"


def format_p_value(p: float) -> str:
    return "-" if p != p else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def round_for_csv(value: Any) -> Any:
    if isinstance(value, bool) or value is None or not isinstance(value, float):
        return {None: "", True: "yes", False: "no"}.get(value, value) if not isinstance(value, int | str) else value
    return "" if math.isnan(value) else f"{value:.{DIGITS}g}"


# --- making it --------------------------------------------------------------------------------------------------------


def tabulate_rows(rows: RowTable, metrics: Mapping[str, Measure]) -> Table:
    lines = [line for k, label in enumerate(rows.metrics) for line in make_metric_lines(rows, k, label, metrics[label])]
    curves: dict[str, dict[str, Sequence[float]]] = {}
    for k, metric in enumerate(rows.metrics):
        for m, method in enumerate(rows.methods):
            held = rows.curves(m, k)
            if held is not None and not np.isnan(held).all():
                curves.setdefault(metric, {})[method] = held[~np.isnan(held).any(1)].mean(0).tolist()
    better = {label: metrics[label].metric.better for label in rows.metrics}
    kinds = {label: str(metrics[label].metric.kind) for label in rows.metrics}
    return Table(tuple(lines), better, kinds, curves, rows.at)


def make_metric_lines(rows: RowTable, k: int, label: str, chosen: Measure) -> list[Line]:
    """The lines of one metric."""
    measured = [collect_values(rows, m, k, chosen) for m in range(len(rows.methods))]
    combine = combine_of(chosen)
    means = [bootstrap(values, combine=combine) for values in measured]
    counts = [int((~np.isnan(rows.value[:, m, k])).sum()) for m in range(len(rows.methods))]
    order = rank_methods([mean for mean, _, _ in means], counts, chosen.metric.better)
    best = order[0] if means[order[0]][0] == means[order[0]][0] else None
    chance = next((m for m, method in enumerate(rows.methods) if is_chance(method)), None)
    against_best, against_chance = (compute_p_values(measured, rival, combine) for rival in (best, chance))
    by_chance = None if chance is None else measured[chance]
    lines = []
    for m, method in enumerate(rows.methods):
        held = rows.of(m, k)
        mean, low, high = means[m]
        states = [row.state for row in held]
        spent = {
            kind: mean_of_known([getattr(row, kind) for row in held]) for kind in ("forward", "backward", "relevance")
        }
        lines.append(
            Line(
                metric=label,
                method=method,
                mean=mean,
                low=low,
                high=high,
                count=counts[m],
                undefined=states.count("undefined"),
                missing=states.count("missing"),
                failed=states.count("failed"),
                p_best=against_best[m],
                p_chance=against_chance[m],
                rank=order.index(m) + 1,
                is_best=m == best,
                beats_chance=compare_with_chance(measured[m], by_chance, against_chance[m], chosen),
                **spent,
            )
        )
    return lines


def collect_values(rows: RowTable, m: int, k: int, chosen: Measure) -> np.ndarray:
    """[example], or [example part] for a figure of the whole data set."""
    if chosen.metric.combine is None:
        return rows.value[:, m, k]
    parts = rows.parts(m, k)
    return np.full((len(rows.value), 1), math.nan) if parts is None else parts


def combine_of(chosen: Measure) -> Combiner | None:
    combine = chosen.metric.combine
    return None if combine is None else lambda parts: combine(torch.from_numpy(np.ascontiguousarray(parts)))


def rank_methods(means: Sequence[float], counts: Sequence[int], better: str) -> list[int]:
    """From best to worst: those with enough numbers first, those without any last; equal ones in their order."""
    enough = MIN_COVERAGE * max(counts, default=0)
    sign = -1 if better == "higher" else 1

    def key(m: int) -> tuple[bool, bool, float]:
        unknown = means[m] != means[m]
        return unknown, counts[m] < enough, 0.0 if unknown else sign * means[m]

    return sorted(range(len(means)), key=key)


def compute_p_values(measured: Sequence[np.ndarray], rival: int | None, combine: Combiner | None) -> list[float]:
    """Corrected p-values of every method against one of them, NaN for itself."""
    if rival is None:
        return [math.nan] * len(measured)
    against = measured[rival]
    is_fit = [m != rival and one.shape == against.shape for m, one in enumerate(measured)]
    found = [
        paired_test(one, against, combine=combine) if fits else math.nan
        for one, fits in zip(measured, is_fit, strict=True)
    ]
    return adjust_p_values(found)


def compare_with_chance(one: np.ndarray, chance: np.ndarray | None, p: float, chosen: Measure) -> bool | None:
    """By the examples both have, as p is: a method that skips the hard ones must not look better for it."""
    if chance is None or p != p or p >= SIGNIFICANCE_LEVEL:
        return None
    both = ~(np.isnan(one) | np.isnan(chance)).reshape(len(one), -1).any(1)
    combine = combine_of(chosen) or np.mean
    difference = float(combine(one[both])) - float(combine(chance[both]))
    return None if difference == 0 else (difference > 0) == (chosen.metric.better == "higher")


def mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan
