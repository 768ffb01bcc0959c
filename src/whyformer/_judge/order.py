"""Does an expected order hold here? Pairs of methods, with the interval of the paired difference.

The difference of a better and a worse method is taken on the same examples and resampled over examples (bootstrap,
95 %). The order of the pair *holds* if the whole interval is above 0, is *reversed* if it is below, and is *undecided*
otherwise. The intervals of single pairs are not corrected for
their number: of 20 pairs without any difference, one is expected to hold or to be reversed by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from whyformer._plain.statistics import Combiner, draw_resamples, find_complete_rows

OrderVerdict = Literal["holds", "reversed", "undecided"]


@dataclass(frozen=True)
class PairOrder:
    """Two methods in the expected order, and the difference measured here: above 0 if it is that order."""

    better: str
    worse: str
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> OrderVerdict:
        if self.low > 0:
            return "holds"
        return "reversed" if self.high < 0 else "undecided"


def compare_pairs(
    pairs: Sequence[tuple[str, str]],
    values: Mapping[str, np.ndarray],
    better: Literal["higher", "lower"],
    combine: Combiner | None = None,
) -> list[PairOrder]:
    """Pairs of a better and a worse method, as measured here. values: [example], or [example part] with `combine`.

    Methods without values are left out. Only examples that all others have count.
    """
    names = [name for name in values if not np.isnan(values[name]).all()]
    if not names:
        return []
    complete = np.logical_and.reduce([find_complete_rows(~np.isnan(values[name])) for name in names])
    if complete.sum() < 2:
        return []
    sign = 1 if better == "higher" else -1
    draws = {name: sign * resample_statistic(values[name][complete], combine) for name in names}
    found = []
    for ahead, behind in pairs:
        if ahead in draws and behind in draws:
            difference = draws[ahead] - draws[behind]
            low, high = np.nanquantile(difference[1:], [0.025, 0.975])
            found.append(PairOrder(ahead, behind, float(difference[0]), float(low), float(high)))
    return found


def resample_statistic(values: np.ndarray, combine: Combiner | None) -> np.ndarray:
    """The statistic of all examples, then of every resample. The same seed for each method keeps them paired."""
    found: list[float] = [float(values.mean()) if combine is None else float(combine(values))]
    for rows in draw_resamples(len(values), np.random.default_rng(0)):
        found += values[rows].mean(1).tolist() if combine is None else [combine(values[row]) for row in rows]
    return np.array(found)
