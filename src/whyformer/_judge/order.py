"""Does an expected order hold here? Pairs of methods, with the interval of the paired difference.

The difference of a better and a worse method is taken on the examples that both have. Its 95 % interval is Student's t
of the differences; of a metric of the whole data set (mean IoU) they are those of the jackknife's pseudo-values,
n theta - (n - 1) theta without the example (Tukey 1958), and the interval reaches 0 unless the exact test by exchanges
is significant too, since a few large examples can decide such a metric. The order of the pair *holds* if the whole
interval is above 0, is *reversed* if it is below, and is *undecided* otherwise, and below MIN_EXAMPLES, where no
interval is given. Of pairs without a difference, one in twenty holds or is reversed by chance
(tests/verdicts/test_noise.py); the intervals of single pairs are not corrected for their number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from whyformer._plain.statistics import Combiner, compute_t_interval, find_complete_rows, paired_test

OrderVerdict = Literal["holds", "reversed", "undecided"]
MIN_EXAMPLES = 10  # for an interval
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class PairOrder:
    """Two methods in the expected order, and the difference measured here: above 0 if it is that order."""

    better: str
    worse: str
    difference: float
    low: float  # NaN below MIN_EXAMPLES
    high: float
    count: int  # examples that both have
    total: int  # examples that some method has

    @property
    def verdict(self) -> OrderVerdict:
        if self.low > 0:
            return "holds"
        return "reversed" if self.high < 0 else "undecided"

    @property
    def needed(self) -> float:
        """About how many examples would decide an undecided pair, if its difference and spread are those seen here."""
        if self.count < MIN_EXAMPLES:
            return MIN_EXAMPLES
        return (
            math.ceil(self.count * (self.high - self.difference) ** 2 / self.difference**2)
            if self.difference
            else math.inf
        )


def compare_pairs(
    pairs: Sequence[tuple[str, str]],
    values: Mapping[str, np.ndarray],
    better: Literal["higher", "lower"],
    combine: Combiner | None = None,
) -> list[PairOrder]:
    """Pairs of a better and a worse method, as measured here. values: [example], or [example part] with `combine`.

    Pairs without two examples that both have are left out.
    """
    known = {name: find_complete_rows(~np.isnan(one)) for name, one in values.items()}
    total = int(np.logical_or.reduce(list(known.values())).sum()) if known else 0
    sign, found = 1 if better == "higher" else -1, []
    for ahead, behind in pairs:
        both = known[ahead] & known[behind]
        if both.sum() >= 2:
            one, other = values[ahead][both], values[behind][both]
            differences = as_pseudo_values(one, combine) - as_pseudo_values(other, combine)
            _, low, high = compute_t_interval(sign * differences, least=MIN_EXAMPLES)
            is_clear = low * high > 0
            if is_clear and combine is not None and paired_test(one, other, combine=combine) >= SIGNIFICANCE_LEVEL:
                low, high = min(low, 0.0), max(high, 0.0)
            difference = sign * (summarise(one, combine) - summarise(other, combine))
            found.append(PairOrder(ahead, behind, difference, low, high, int(both.sum()), total))
    return found


def summarise(values: np.ndarray, combine: Combiner | None) -> float:
    return float(values.mean()) if combine is None else float(combine(values))


def as_pseudo_values(values: np.ndarray, combine: Combiner | None) -> np.ndarray:
    """[example]: what each example adds to the statistic; for a mean the values themselves."""
    if combine is None:
        return values
    count, whole = len(values), combine(values)
    without = [combine(np.delete(values, example, axis=0)) for example in range(count)]
    return np.array([count * whole - (count - 1) * one for one in without])
