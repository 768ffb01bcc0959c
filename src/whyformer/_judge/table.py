"""The table: for each metric, the methods from best to worst, with intervals and tests.

A mean is taken over the examples for which the metric has a value; metrics of a whole data set (mean IoU) are computed
from the parts of all examples. Intervals are bootstrap intervals over examples. A row with values for too few examples,
or with an infinite one, is ranked behind the others and is never called the best.

Each row is tested against the best one and against chance, and each method against every control, on the examples that
both have. All rows of all metrics are corrected together (paired_tests): if no method differed from the controls, at
most 5 % of tables would call any method better or worse than they are, however many methods and metrics there are. The
best row is chosen on the same examples, so the tests against it favour it slightly. A method is better than the
controls if it is better than each of them: its p-value is the largest of those against single controls (the
intersection-union test; Berger, Technometrics 1982).
"""

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from whyformer._judge.controls import is_control
from whyformer._judge.order import as_pseudo_values
from whyformer._judge.rows import RowTable
from whyformer._judge.weaknesses import describe_judged_metric, describe_weakness
from whyformer._plain.small_table import make_small_table
from whyformer._plain.statistics import Combiner, Pair, bootstrap, compute_t_interval, find_complete_rows, paired_tests
from whyformer._runs.choice import is_chance
from whyformer._runs.preparation import KindOfInput
from whyformer.metrics._registry import MetricCall
from whyformer.results.result import make_data_frame
from whyformer.show.markdown_report import escape_markdown, write_table
from whyformer.show.score_rows import as_csv_cell

if TYPE_CHECKING:
    from pandas import DataFrame

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class MeasuredMetric:
    """The values of all rows in one metric. Rows are numbered as the methods of the table."""

    k: int  # its place among the metrics
    values: Sequence[np.ndarray]  # of each row: [example], or [example part] for a metric of the whole data set
    combine: Combiner | None
    sign: int  # 1 if higher is better, -1 if lower is
    means: Sequence[tuple[float, float, float]]  # with the ends of their intervals
    counts: Sequence[int]  # examples with a value
    infinite: Sequence[int]
    order: Sequence[int]  # rows from best to worst
    best: int | None
    chance: int | None
    all_controls: Sequence[int]  # best first

    @property
    def controls(self) -> list[int]:
        """The controls that have values, best first."""
        return [m for m in self.all_controls if self.counts[m]]

    def measure_advantage(self, m: int, rival: int) -> float:
        """How much better row m is than its rival.

        Only examples that both have count, as for p: a method that skips hard examples must not look better for it.
        """
        kept = Pair(self.values[m], self.values[rival]).complete
        combine = self.combine or np.mean
        return self.sign * (float(combine(self.values[m][kept])) - float(combine(self.values[rival][kept])))


class Significance:
    """The p-values of a table. Each of the three families of tests is corrected over all rows and metrics."""

    def __init__(self, metrics: Sequence[MeasuredMetric]) -> None:
        self.best = compute_rival_p_values(metrics, lambda metric, m: [metric.best])
        self._controls = compute_rival_p_values(
            metrics, lambda metric, m: () if m in metric.all_controls else metric.controls
        )
        is_only_control = all(list(metric.all_controls) == [metric.chance] for metric in metrics)
        self._chance = (
            self._controls if is_only_control else compute_rival_p_values(metrics, lambda metric, m: [metric.chance])
        )

    def against_chance(self, metric: MeasuredMetric, m: int) -> tuple[float, bool | None]:
        """p, and whether the row is better than chance: None if the difference is not significant."""
        p = self._chance.get((metric.k, m, metric.chance), math.nan)
        if metric.chance is None or not p < SIGNIFICANCE_LEVEL:
            return p, None
        advantage = metric.measure_advantage(m, metric.chance)
        return p, None if advantage == 0 else advantage > 0

    def against_controls(self, metric: MeasuredMetric, m: int) -> tuple[float, bool | None]:
        """p, and whether the row is better than every control, or worse than the best one; None if neither.

        For a row above the best control p is the largest of those against single controls; for one below, that of being
        worse than the best.
        """
        found = {rival: self._controls.get((metric.k, m, rival), math.nan) for rival in metric.controls}
        tested = [(rival, p) for rival, p in found.items() if p == p]
        if not tested:
            return math.nan, None
        advantages = [metric.measure_advantage(m, rival) for rival, _ in tested]
        if is_better := advantages[0] > 0:
            p = max(p if advantage > 0 else 1.0 for (_, p), advantage in zip(tested, advantages, strict=True))
        else:
            p = tested[0][1] if advantages[0] < 0 else 1.0
        return p, is_better if p < SIGNIFICANCE_LEVEL else None


def compute_rival_p_values(
    metrics: Sequence[MeasuredMetric], find_rivals: Callable[[MeasuredMetric, int], Sequence[int | None]]
) -> dict[tuple[int, int, int | None], float]:
    """The p-values of (metric, row, rival), corrected together; none for pairs without an example that both have."""
    pairs = {
        (metric.k, m, rival): Pair(metric.values[m], metric.values[rival], metric.combine)
        for metric in metrics
        for m in range(len(metric.values))
        for rival in find_rivals(metric, m)
        if rival is not None and m != rival and metric.values[m].shape == metric.values[rival].shape
    }
    tested = zip(pairs, paired_tests(list(pairs.values())), strict=True)
    return {key: p for key, p in tested if p == p}


DIGITS = 6  # significant digits in files; further digits depend on the processor
MIN_COVERAGE = 0.9  # to be the best, a row needs values for this fraction of the examples that others have
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
    expected: int  # values that the row with the most has in this metric
    infinite: int  # values left out because they are infinite, though not for every method of that example

    @property
    def is_fit(self) -> bool:
        """Whether the line may be called the best, and its method be recommended."""
        return has_enough_values(self.count, self.expected) and not self.infinite


@dataclass(frozen=True)
class Lead:
    """How much better one row is than another on the examples that both have, with its 95 % interval."""

    mean: float
    low: float  # NaN below two examples
    high: float
    count: int
    spread: float  # the standard deviation over examples


@dataclass(frozen=True, repr=False)
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
    leads: Mapping[tuple[str, str, str], Lead] = field(default_factory=dict, repr=False)  # by metric, row and rival

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.better)

    def __repr__(self) -> str:
        methods = dict.fromkeys(line.method for line in self.lines)
        return f"<Table of {len(methods)} methods ({', '.join(methods)}) in {', '.join(self.metrics)}>"

    def _repr_html_(self) -> str:
        """A table per metric, for notebooks."""
        titles = {metric: f"{metric} ({self.better[metric]} is better)" for metric in self.metrics}
        return "".join(make_small_table(HEADINGS, self.cells(metric), title=titles[metric]) for metric in self.metrics)

    def to_pandas(self) -> "DataFrame":
        """The lines as a data frame of pandas."""
        return make_data_frame(self.records())

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
        return [line for line in self.of(metric) if line.is_fit and (line.is_best or line.p_best >= SIGNIFICANCE_LEVEL)]

    def records(self) -> list[dict[str, object]]:
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
            + write_table([HEADINGS, *self.cells(metric)])
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


def round_for_csv(value: str | float | None) -> str | float | None:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{DIGITS}g}"
    return as_csv_cell(value) if isinstance(value, str) else value


# --- computing it -----------------------------------------------------------------------------------------------------


def tabulate_rows(
    rows: RowTable,
    metrics: Mapping[str, MetricCall],
    *,
    class_blind: frozenset[str] = frozenset(),
    kind: KindOfInput | None = None,
) -> Table:
    """The table of all rows. class_blind: methods that ignore the class; kind: what the examples are."""
    measured = [measure_metric(rows, k, metrics[label]) for k, label in enumerate(rows.metrics)]
    significance = Significance(measured)
    lines = [make_line(rows, metric, m, significance) for metric in measured for m in range(len(rows.methods))]
    curves: dict[str, dict[str, Sequence[float]]] = {}
    for k, metric in enumerate(rows.metrics):
        for m, method in enumerate(rows.methods):
            steps = rows.curves(m, k)
            if steps is not None and (finite := np.isfinite(steps).all(1)).any():
                curves.setdefault(metric, {})[method] = steps[finite].mean(0).tolist()
    weaknesses = {label: describe_weakness(metrics[label].metric.name, kind) for label in rows.metrics}
    scale = name_output(rows)
    return Table(
        tuple(lines),
        better={label: metrics[label].metric.better for label in rows.metrics},
        kinds={label: str(metrics[label].metric.kind) for label in rows.metrics},
        curves=curves,
        at=rows.at,
        descriptions={label: describe_judged_metric(metrics[label], kind, scale) for label in rows.metrics},
        weaknesses={label: weakness for label, weakness in weaknesses.items() if weakness},
        class_blind=class_blind,
        leads={key: lead for metric in measured for key, lead in measure_leads(rows, metric)},
    )


def name_output(rows: RowTable) -> str:
    """What falls when something is removed: the probability of the target, or the output of a regression."""
    explained = [row for row in rows.examples() if row.target >= 0]
    is_number = bool(explained) and all(row.probability != row.probability for row in explained)
    return "output" if is_number else "probability"


def measure_leads(rows: RowTable, metric: MeasuredMetric) -> Iterator[tuple[tuple[str, str, str], Lead]]:
    """Every row that is no control against every other row: the mean of the difference, by Student's t."""
    name, values = rows.metrics[metric.k], [fill_pseudo_values(own, metric.combine) for own in metric.values]
    for m, rival in permutations(range(len(values)), 2):
        if m not in metric.all_controls and values[m].shape == values[rival].shape:
            differences = metric.sign * (values[m] - values[rival])
            known = differences[~np.isnan(differences)]
            spread = float(known.std(ddof=1)) if len(known) > 1 else math.nan
            yield (name, rows.methods[m], rows.methods[rival]), Lead(*compute_t_interval(known), len(known), spread)


def fill_pseudo_values(values: np.ndarray, combine: Combiner | None) -> np.ndarray:
    """[example]: what each example adds to the figure; NaN where it has no value."""
    known = find_complete_rows(~np.isnan(values))
    found = np.full(len(values), math.nan)
    if known.any():
        found[known] = as_pseudo_values(values[known], combine)
    return found


def make_line(rows: RowTable, metric: MeasuredMetric, m: int, significance: Significance) -> Line:
    own_rows = rows.of(m, metric.k)
    mean, low, high = metric.means[m]
    states = [row.state for row in own_rows]
    passes = {
        kind: mean_of_known([getattr(row, kind) for row in own_rows])
        for kind in ("forward", "backward", "relevance", "undetermined")
    }
    p_chance, beats_chance = significance.against_chance(metric, m)
    p_control, beats_control = significance.against_controls(metric, m)
    return Line(
        metric=rows.metrics[metric.k],
        method=rows.methods[m],
        mean=mean,
        low=low,
        high=high,
        count=metric.counts[m],
        expected=max(metric.counts),
        infinite=metric.infinite[m],
        undefined=states.count("undefined"),
        missing=states.count("missing"),
        failed=states.count("failed"),
        p_best=significance.best.get((metric.k, m, metric.best), math.nan),
        p_chance=p_chance,
        rank=metric.order.index(m) + 1,
        is_best=m == metric.best,
        beats_chance=beats_chance,
        p_control=p_control,
        beats_control=beats_control,
        is_control=m in metric.all_controls,
        **passes,
    )


def measure_metric(rows: RowTable, k: int, chosen: MetricCall) -> MeasuredMetric:
    """The values of a metric, and the rows from best to worst."""
    values = [collect_values(rows, m, k, chosen) for m in range(len(rows.methods))]
    combine = combine_of(chosen)
    means = [bootstrap(own, combine=combine) for own in values]
    counts = (~np.isnan(rows.value[:, :, k])).sum(0).tolist()
    infinite = rows.infinite[:, :, k].sum(0).tolist()
    fit = [has_enough_values(count, max(counts)) and not number for count, number in zip(counts, infinite, strict=True)]
    order = rank_methods([mean for mean, _, _ in means], fit, chosen.metric.better)
    return MeasuredMetric(
        k,
        values,
        combine,
        1 if chosen.metric.better == "higher" else -1,
        means,
        counts,
        infinite,
        order,
        best=order[0] if fit[order[0]] else None,
        chance=next((m for m, method in enumerate(rows.methods) if is_chance(method)), None),
        all_controls=[m for m in order if is_control(rows.methods[m])],
    )


def has_enough_values(count: int, expected: int) -> bool:
    """Whether a row has values for nine tenths of the examples that the row with the most has: it may not pick."""
    return 0 < count >= MIN_COVERAGE * expected


def collect_values(rows: RowTable, m: int, k: int, chosen: MetricCall) -> np.ndarray:
    """[example], or [example part] for a metric of the whole data set."""
    if chosen.metric.combine is None:
        return rows.value[:, m, k]
    parts = rows.parts(m, k)
    return np.full((len(rows.value), 1), math.nan) if parts is None else parts


def combine_of(chosen: MetricCall) -> Combiner | None:
    combine = chosen.metric.combine
    return None if combine is None else lambda parts: combine(torch.from_numpy(np.ascontiguousarray(parts)))


def rank_methods(means: Sequence[float], fit: Sequence[bool], better: str) -> list[int]:
    """From best to worst. Rows that are not fit to be the best come after the others, rows without values last."""
    sign = -1 if better == "higher" else 1

    def key(m: int) -> tuple[bool, bool, float]:
        unknown = means[m] != means[m]
        return unknown, not fit[m], 0.0 if unknown else sign * means[m]

    return sorted(range(len(means)), key=key)


def mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan
