"""Does a published order hold here? Every pair of methods, with the interval of the paired difference.

For each two methods that a paper ranks, the difference measured here is taken on the same examples and resampled over
examples (bootstrap, 95 %). The order of the pair *holds* if the whole interval is on the paper's side of 0, is
*reversed* if it is on the other side, and is *undecided* otherwise. The intervals of single pairs are not corrected for
their number: of 20 pairs without any difference, one is expected to hold or to be reversed by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from whyformer._plain.statistics import Combiner, draw_resamples, find_complete_rows

MOST_NAMED = 4  # reversed pairs that a sentence names

OrderVerdict = Literal["holds", "reversed", "undecided"]


@dataclass(frozen=True)
class PairOrder:
    """Two methods in the paper's order, and the difference measured here: above 0 if it is the paper's order."""

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


def compare_orders(
    published: Mapping[str, float],
    values: Mapping[str, np.ndarray],
    better: Literal["higher", "lower"],
    combine: Combiner | None = None,
) -> list[PairOrder]:
    """Every pair of methods that the paper's numbers rank; pairs with the same number are left out."""
    sign = 1 if better == "higher" else -1
    pairs = [
        (first, second) if sign * published[first] > sign * published[second] else (second, first)
        for first, second in combinations(published, 2)
        if published[first] != published[second]
    ]
    return compare_pairs(pairs, values, better, combine)


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
    generator = np.random.default_rng(0)
    found: list[float] = [float(values.mean()) if combine is None else float(combine(values))]
    for rows in draw_resamples(len(values), generator):
        found += values[rows].mean(1).tolist() if combine is None else [combine(values[row]) for row in rows]
    return np.array(found)


def describe_orders(pairs: Sequence[PairOrder]) -> str:
    """How many of the paper's pairs hold here, and which are reversed."""
    groups = {verdict: [p for p in pairs if p.verdict == verdict] for verdict in ("holds", "reversed", "undecided")}
    turned = [f"{pair.worse} over {pair.better}" for pair in groups["reversed"]]
    more = f" and {len(turned) - MOST_NAMED} more" if len(turned) > MOST_NAMED else ""
    named = f" ({', '.join(turned[:MOST_NAMED])}{more})" if turned else ""
    counts = f"{len(groups['holds'])} hold, {len(turned)} reversed{named}, {len(groups['undecided'])} undecided"
    return f"of the {len(pairs)} published pairs {counts}"
