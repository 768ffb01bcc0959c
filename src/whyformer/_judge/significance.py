"""Which differences in the table are more than noise.

Each row is tested against the best one and against chance, and each method against every control, on the examples that
both have. All rows of all metrics are corrected together (paired_tests): if no method differed from the controls, at
most 5 % of tables would call any method better or worse than they are, however many methods and metrics there are. The
best row is chosen on the same examples, so the tests against it favour it slightly. A method is better than the
controls if it is better than each of them: its p-value is the largest of those against single controls (the
intersection-union test; Berger, Technometrics 1982).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from whyformer._plain.statistics import Combiner, Pair, paired_tests

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
        self._best = compute_rival_p_values(metrics, lambda metric, m: [metric.best])
        self._controls = compute_rival_p_values(metrics, find_controls_to_beat)
        is_only_control = all(list(metric.all_controls) == [metric.chance] for metric in metrics)
        self._chance = (
            self._controls if is_only_control else compute_rival_p_values(metrics, lambda metric, m: [metric.chance])
        )

    def against_best(self, metric: MeasuredMetric, m: int) -> float:
        return self._best.get((metric.k, m, metric.best), math.nan)

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


def find_controls_to_beat(metric: MeasuredMetric, m: int) -> Sequence[int]:
    return () if m in metric.all_controls else metric.controls


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
