"""The table: for each metric, the methods from best to worst, with intervals and tests.

A mean is taken over the examples for which the metric has a value; metrics of a whole data set (mean IoU) are computed
from the parts of all examples. Intervals are bootstrap intervals over examples. Each row is tested against the best
one and against chance, and each method against the controls, on the examples that both have, with Holm's correction
over the rows tested in a metric. The best row is chosen on the same examples, so the tests against it favour it
slightly. A method is better than the controls if it is better than each of them: its p-value is the largest of those
against single controls (the intersection-union test; Berger, Technometrics 1982), which needs no further correction.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch

from whyformer._judge.controls import KindOfInput, is_chance, is_control
from whyformer._judge.rows import RowTable
from whyformer._judge.weaknesses import describe_judged_metric, describe_weakness
from whyformer._plain.statistics import Combiner, adjust_p_values, bootstrap, paired_test
from whyformer.metrics._registry import MetricCall
from whyformer.show.markdown import escape_markdown
from whyformer.show.score_rows import as_csv_cell

DIGITS = 6  # significant digits in files; further digits depend on the processor
MIN_COVERAGE = 0.9  # to be the best, a method needs values for this fraction of the examples that others have
SIGNIFICANCE_LEVEL = 0.05
FEW_EXAMPLES = 30
HEADINGS = (
    "method",
    "mean",
    "95 %",
    "n",
    "against the best",
    "against chance",
    "against the controls",
    "passes",
    "undetermined",
)


@dataclass(frozen=True)
class Line:
    """One method in one metric."""

    metric: str
    method: str
    mean: float
    low: float  # of the 95 % interval
    high: float
    count: int  # examples with a value
    undefined: int
    missing: int
    failed: int
    p_best: float  # p-value against the best method, corrected; NaN for the best method itself
    p_chance: float
    forward: float  # passes through the model per explanation, on average
    backward: float
    relevance: float
    undetermined: float  # share of examples in which rounding may decide the order of the top scores
    rank: int
    is_best: bool
    beats_chance: bool | None  # None: not significantly different from chance
    p_control: float  # p-value against all controls, or of being worse than the best one, corrected; NaN for controls
    beats_control: bool | None  # True: better than every control, False: worse than the best one, None: neither
    is_control: bool  # chance is one, too


@dataclass(frozen=True)
class Table:
    """All methods in all metrics."""

    lines: tuple[Line, ...]
    better: Mapping[str, Literal["higher", "lower"]]
    kinds: Mapping[str, str]
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict, repr=False)  # [metric][method]
    at: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)  # x values of the curves, by metric
    descriptions: Mapping[str, str] = field(default_factory=dict, repr=False)  # a sentence for each metric
    weaknesses: Mapping[str, str] = field(default_factory=dict, repr=False)  # a clause for each metric that has one
    class_blind: frozenset[str] = frozenset()  # methods whose map does not depend on the explained class

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.better)

    def of(self, metric: str) -> list[Line]:
        """The lines of a metric, best first."""
        return sorted((line for line in self.lines if line.metric == metric), key=lambda line: line.rank)

    def best(self, metric: str) -> Line | None:
        return next((line for line in self.of(metric) if line.is_best), None)

    def best_control(self, metric: str) -> Line | None:
        """The control with the best mean; None if no control has a value."""
        return next((line for line in self.of(metric) if line.is_control and line.count), None)

    def tied(self, metric: str) -> list[Line]:
        """The best method, and those that are not significantly different from it."""
        return [line for line in self.of(metric) if line.is_best or line.p_best >= SIGNIFICANCE_LEVEL]

    def records(self) -> list[dict[str, Any]]:
        """The lines as JSON values, None where there is no value."""
        return [
            {name: None if value != value else value for name, value in asdict(line).items()}
            for metric in self.metrics
            for line in self.of(metric)
        ]

    def to_csv(self) -> str:
        names = [column.name for column in fields(Line)]
        lines = [asdict(line) for metric in self.metrics for line in self.of(metric)]
        return format_csv([names, *([round_for_csv(line[name]) for name in names] for line in lines)])

    def to_markdown(self) -> str:
        """One Markdown table per metric."""
        parts = [
            f"**{escape_markdown(metric)}** ({self.better[metric]} is better)\n\n"
            + format_markdown([HEADINGS, *self.cells(metric)])
            for metric in self.metrics
        ]
        return "\n".join(parts)

    def cells(self, metric: str) -> list[list[str]]:
        """The lines of a metric as text under HEADINGS."""
        return [[line.method, *format_line(line)] for line in self.of(metric)]


def format_csv(rows: Sequence[Sequence[Any]]) -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\n").writerows(rows)
    return sink.getvalue()


def format_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the header. The header and the first column hold names, which are escaped."""
    header, *body = rows
    head = [escape_markdown(name) for name in header]
    lines = [[escape_markdown(name), *cells] for name, *cells in body]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *lines])


def format_line(line: Line) -> list[str]:
    """One line as text, under HEADINGS[1:]."""
    return [
        format_mean(line.mean),
        f"{format_mean(line.low)} to {format_mean(line.high)}" if line.low == line.low else "-",
        str(line.count),
        "best" if line.is_best else format_p_value(line.p_best),
        format_p_value(line.p_chance) + ("" if line.beats_chance is not False else " worse"),
        "control" if line.is_control else format_p_value(line.p_control) + " worse" * (line.beats_control is False),
        format_passes(line),
        "-" if line.undetermined != line.undetermined else f"{line.undetermined:.0%}",
    ]


def format_passes(line: Line) -> str:
    """Passes through the model per explanation: forward, and backward for gradients and for relevance."""
    if line.forward != line.forward:
        return "-"
    back = line.backward + line.relevance
    return f"{line.forward:.4g}" + (f" + {back:.4g} back" if back else "")


def format_mean(number: float) -> str:
    return "-" if number != number else f"{number:.4g}" if abs(number) < 1000 else f"{number:.0f}"


def format_p_value(p: float) -> str:
    return "-" if p != p else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def round_for_csv(value: Any) -> Any:
    if isinstance(value, str):
        return as_csv_cell(value)
    if isinstance(value, bool) or value is None or not isinstance(value, float):
        return {None: "", True: "yes", False: "no"}.get(value, value) if not isinstance(value, int) else value
    return "" if math.isnan(value) else f"{value:.{DIGITS}g}"


# --- computing it -----------------------------------------------------------------------------------------------------


def tabulate_rows(
    rows: RowTable,
    metrics: Mapping[str, MetricCall],
    *,
    class_blind: frozenset[str] = frozenset(),
    kind: KindOfInput | None = None,
) -> Table:
    """The table of all rows. class_blind: methods that ignore the class; kind: what the examples are."""
    lines = [line for k, label in enumerate(rows.metrics) for line in make_metric_lines(rows, k, label, metrics[label])]
    curves: dict[str, dict[str, Sequence[float]]] = {}
    for k, metric in enumerate(rows.metrics):
        for m, method in enumerate(rows.methods):
            steps = rows.curves(m, k)
            if steps is not None and not np.isnan(steps).all():
                curves.setdefault(metric, {})[method] = steps[~np.isnan(steps).any(1)].mean(0).tolist()
    weaknesses = {label: describe_weakness(metrics[label].metric.name, kind) for label in rows.metrics}
    return Table(
        tuple(lines),
        better={label: metrics[label].metric.better for label in rows.metrics},
        kinds={label: str(metrics[label].metric.kind) for label in rows.metrics},
        curves=curves,
        at=rows.at,
        descriptions={label: describe_judged_metric(metrics[label], kind) for label in rows.metrics},
        weaknesses={label: weakness for label, weakness in weaknesses.items() if weakness},
        class_blind=class_blind,
    )


def make_metric_lines(rows: RowTable, k: int, label: str, chosen: MetricCall) -> list[Line]:
    """The lines of one metric."""
    measured = [collect_values(rows, m, k, chosen) for m in range(len(rows.methods))]
    combine = combine_of(chosen)
    means = [bootstrap(values, combine=combine) for values in measured]
    counts = [int((~np.isnan(rows.value[:, m, k])).sum()) for m in range(len(rows.methods))]
    order = rank_methods([mean for mean, _, _ in means], counts, chosen.metric.better)
    are_controls = [is_control(method) for method in rows.methods]
    best = order[0] if means[order[0]][0] == means[order[0]][0] else None
    chance = next((m for m, method in enumerate(rows.methods) if is_chance(method)), None)
    controls = [m for m in order if are_controls[m] and counts[m]]
    tested = {rival: compute_p_values(measured, rival, combine) for rival in {best, chance, *controls}}
    against_best, against_chance = (adjust_p_values(tested[rival]) for rival in (best, chance))
    compared = [
        (math.nan, False) if are_controls[m] else compare_with_controls(measured, m, controls, tested, chosen)
        for m in range(len(measured))
    ]
    against_control = adjust_p_values([p for p, _ in compared])
    lines = []
    for m, method in enumerate(rows.methods):
        own_rows = rows.of(m, k)
        mean, low, high = means[m]
        states = [row.state for row in own_rows]
        passes = {
            kind: mean_of_known([getattr(row, kind) for row in own_rows])
            for kind in ("forward", "backward", "relevance", "undetermined")
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
                beats_chance=is_significantly_better(measured, m, chance, against_chance[m], chosen),
                p_control=against_control[m],
                beats_control=compared[m][1] if against_control[m] < SIGNIFICANCE_LEVEL else None,
                is_control=are_controls[m],
                **passes,
            )
        )
    return lines


def collect_values(rows: RowTable, m: int, k: int, chosen: MetricCall) -> np.ndarray:
    """[example], or [example part] for a metric of the whole data set."""
    if chosen.metric.combine is None:
        return rows.value[:, m, k]
    parts = rows.parts(m, k)
    return np.full((len(rows.value), 1), math.nan) if parts is None else parts


def combine_of(chosen: MetricCall) -> Combiner | None:
    combine = chosen.metric.combine
    return None if combine is None else lambda parts: combine(torch.from_numpy(np.ascontiguousarray(parts)))


def rank_methods(means: Sequence[float], counts: Sequence[int], better: str) -> list[int]:
    """From best to worst. Methods with too few values come after the others, methods without values last."""
    enough = MIN_COVERAGE * max(counts, default=0)
    sign = -1 if better == "higher" else 1

    def key(m: int) -> tuple[bool, bool, float]:
        unknown = means[m] != means[m]
        return unknown, counts[m] < enough, 0.0 if unknown else sign * means[m]

    return sorted(range(len(means)), key=key)


def compute_p_values(measured: Sequence[np.ndarray], rival: int | None, combine: Combiner | None) -> list[float]:
    """The p-values of every row against `rival`, NaN for the rival itself."""
    if rival is None:
        return [math.nan] * len(measured)
    return [
        paired_test(values, measured[rival], combine=combine)
        if m != rival and values.shape == measured[rival].shape
        else math.nan
        for m, values in enumerate(measured)
    ]


def compare_with_controls(
    measured: Sequence[np.ndarray],
    m: int,
    controls: Sequence[int],
    tested: Mapping[int | None, Sequence[float]],
    chosen: MetricCall,
) -> tuple[float, bool]:
    """The p-value of a method against the controls, best first, and whether it is better than the best of them.

    If it is, the p-value is the largest one of being better than a control; if not, that of being worse than the best.
    """
    rivals = [rival for rival in controls if tested[rival][m] == tested[rival][m]]
    if not rivals:
        return math.nan, False
    differences = [measure_advantage(measured, m, rival, chosen) for rival in rivals]
    p_values = [tested[rival][m] for rival in rivals]
    if differences[0] <= 0:
        return (p_values[0] if differences[0] < 0 else 1.0), False
    return max(p if difference > 0 else 1.0 for p, difference in zip(p_values, differences, strict=True)), True


def is_significantly_better(
    measured: Sequence[np.ndarray], m: int, rival: int | None, p: float, chosen: MetricCall
) -> bool | None:
    """Whether row m is better than its rival; None if the difference is not significant."""
    if rival is None or p != p or p >= SIGNIFICANCE_LEVEL:
        return None
    difference = measure_advantage(measured, m, rival, chosen)
    return None if difference == 0 else difference > 0


def measure_advantage(measured: Sequence[np.ndarray], m: int, rival: int, chosen: MetricCall) -> float:
    """How much better row m is than its rival.

    Only examples that both have count, as for p: a method that skips hard examples must not look better for it.
    """
    values, others = measured[m], measured[rival]
    both = ~(np.isnan(values) | np.isnan(others)).reshape(len(values), -1).any(1)
    combine = combine_of(chosen) or np.mean
    difference = float(combine(values[both])) - float(combine(others[both]))
    return difference if chosen.metric.better == "higher" else -difference


def mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan
