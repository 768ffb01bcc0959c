r"""The uncertainty of a mean: intervals, paired permutation tests and corrections for multiple tests.

Examples with an undefined value (NaN) are left out; a pair needs both values. The random generator depends on `seed`
alone, so the same values give bit-identical results.

The bootstrap draws n of the n examples with replacement; the interval is the middle 95 % of the resampled means (Efron
1979). The paired test asks how often the mean difference would be at least as large if the two methods were swapped at
random in every example:

$$ p = \Pr_{s \in \{-1, 1\}^n}\left( \left|\sum_i s_i d_i\right| \ge \left|\sum_i d_i\right| \right) $$

(Fisher 1935). For small n all $2^n$ swaps are tried, otherwise many random ones plus the observed one.
For a statistic of the whole data set, such as mean IoU, `combine` computes it from the parts [example k] of the
examples drawn.

Several tests on the same examples are corrected together: each try swaps the same examples in all of them, every
difference is divided by its own standard deviation over the tries, and p is the share of tries in which the largest of
all differences is at least as large as the observed one (the step-down max test of Westfall & Young 1993). It allows
for tests that go together, such as two metrics that measure nearly the same, where Holm's correction cannot.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

Combiner: TypeAlias = Callable[[np.ndarray], float]  # [example k] -> one number

RESAMPLES = 2_000
EXCHANGES = 10_000
COMBINED_EXCHANGES = 2_000  # fewer, because `combine` runs for each
MAX_EXACT_PAIRS = 13  # up to this many pairs all swaps are tried
MAX_NUMBERS_HELD = 4_000_000  # in memory at once while drawing
ROUNDING = 1e-6  # of the larger of two values: what a model in float32 gives twice differs by so much
WILSON = 1.96  # standard deviations
TIE = 1e-9  # standard deviations: differences this close are equal, so that rounding does not decide


def bootstrap(
    values: ArrayLike, seed: int = 0, *, level: float = 0.95, combine: Combiner | None = None
) -> tuple[float, float, float]:
    """The mean and the two ends of its confidence interval; with `combine`, that statistic of the parts [example k]."""
    defined = drop_undefined(values)
    if not len(defined):
        return float("nan"), float("nan"), float("nan")
    middle = float(defined.mean()) if combine is None else float(combine(defined))
    if len(defined) == 1:  # one example gives no interval
        return middle, float("nan"), float("nan")
    resamples = (defined[rows] for rows in draw_resamples(len(defined), np.random.default_rng(seed)))
    if combine is None:
        means = np.concatenate([chunk.mean(1) for chunk in resamples])
    else:
        means = np.array([combine(resample) for chunk in resamples for resample in chunk])
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2])
    return middle, float(low), float(high)


def compute_wilson_interval(count: int, total: int) -> tuple[float, float]:
    r"""The ends of Wilson's 95 % interval of a share, with z = 1.96; of nothing, 0 and 1.

    $$ \frac{k + z^2 / 2 \pm z \sqrt{k (n - k) / n + z^2 / 4}}{n + z^2} $$
    """
    if not total:
        return 0.0, 1.0
    middle, square = count + WILSON * WILSON / 2, WILSON * WILSON
    half = WILSON * float(np.sqrt(count * (total - count) / total + square / 4))
    return (middle - half) / (total + square), (middle + half) / (total + square)


def compute_t_interval(values: ArrayLike, *, least: int = 2) -> tuple[float, float, float]:
    """The mean and the ends of Student's 95 % interval, which holds for few values too; NaN below `least` of them."""
    from scipy.special import stdtrit

    defined = drop_undefined(values)
    count, mean = len(defined), float(defined.mean()) if len(defined) else float("nan")
    if count < max(least, 2):
        return mean, float("nan"), float("nan")
    reach = float(stdtrit(count - 1, 0.975) * defined.std(ddof=1) / count**0.5)
    return mean, mean - reach, mean + reach


@dataclass(frozen=True)
class Pair:
    """Two methods on the same examples, and how a statistic of the whole data set is computed from their parts."""

    first: np.ndarray
    second: np.ndarray
    combine: Combiner | None = None

    @property
    def complete(self) -> np.ndarray:
        """Which examples both have."""
        return find_complete_rows(~np.isnan(self.first) & ~np.isnan(self.second))


def paired_test(a: ArrayLike, b: ArrayLike, seed: int = 0, *, combine: Combiner | None = None) -> float:
    """The p-value of the difference between the pairs: small if a and b differ. NaN without any complete pair."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a and b must have the same shape to be paired, got {first.shape} and {second.shape}")
    kept = Pair(first, second, combine).complete
    return paired_tests([Pair(first[kept], second[kept], combine)], seed)[0] if kept.any() else float("nan")


def paired_tests(pairs: Sequence[Pair], seed: int = 0) -> list[float]:
    """The p-values of pairs on the same examples, corrected for all of them together. NaN without a complete example.

    The chance that any p-value of a pair without a difference is below 0.05 is at most 5 %.
    """
    p_values = np.full(len(pairs), np.nan)
    kept = [i for i, pair in enumerate(pairs) if pair.complete.any()]
    if kept:
        p_values[kept] = compute_step_down_p_values([pairs[i] for i in kept], seed)
    return p_values.tolist()


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values: with a threshold of 0.05, the chance of any false alarm is at most 5 %. NaN stays NaN."""
    adjusted = [float("nan")] * len(p_values)
    known = sorted((i for i, p in enumerate(p_values) if p == p), key=lambda i: p_values[i])
    largest = 0.0
    for rank, i in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


# --- resampling -------------------------------------------------------------------------------------------------------


def drop_undefined(values: ArrayLike) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    return numbers[find_complete_rows(~np.isnan(numbers))]


def find_complete_rows(known: np.ndarray) -> np.ndarray:
    """Which examples have all their values."""
    return np.asarray(known.all(axis=tuple(range(1, known.ndim))))


def draw_resamples(count: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices drawn with replacement, [draw example], in chunks that fit into memory."""
    step = max(1, MAX_NUMBERS_HELD // count)
    for start in range(0, RESAMPLES, step):
        yield generator.integers(count, size=(min(step, RESAMPLES - start), count))


def iterate_exchanges(count: int, seed: int, most: int) -> Iterator[np.ndarray]:
    """Which pairs are swapped, [try pair] of bool, in chunks. The very first try swaps none."""
    if count <= MAX_EXACT_PAIRS:
        yield (np.arange(2**count)[:, None] >> np.arange(count)) % 2 == 1
        return
    generator = np.random.default_rng(seed)
    yield np.zeros((1, count), dtype=bool)
    step = max(1, MAX_NUMBERS_HELD // count)
    for start in range(0, most, step):
        yield generator.integers(2, size=(min(step, most - start), count), dtype=np.uint8) == 1


def compute_step_down_p_values(pairs: Sequence[Pair], seed: int) -> np.ndarray:
    """[pair]: from the largest difference to the smallest, how often one of those not larger becomes as large."""
    counts, total = np.zeros(len(pairs)), 0
    for differences in iterate_differences(pairs, seed):
        if not total:
            observed = differences[0]  # the first try swaps none
            order = np.argsort(-observed, kind="stable")
        largest_left = np.maximum.accumulate(differences[:, order[::-1]], axis=1)[:, ::-1]
        counts += (largest_left >= observed[order] - TIE).sum(0)
        total += len(differences)
    p_values = np.empty(len(pairs))
    p_values[order] = np.maximum.accumulate(counts / total)
    return p_values


def iterate_differences(pairs: Sequence[Pair], seed: int) -> Iterator[np.ndarray]:
    """The size of each difference, in its standard deviations, if the same examples are swapped in all, [try pair]."""
    count = len(pairs[0].first)
    most = EXCHANGES if all(pair.combine is None for pair in pairs) else COMBINED_EXCHANGES
    combined = {
        i: swap_parts(pair, iterate_exchanges(count, seed, most)) for i, pair in enumerate(pairs) if pair.combine
    }
    plain = np.stack([np.zeros(count) if i in combined else scale_values(pair) for i, pair in enumerate(pairs)], 1)
    step, start = max(1, MAX_NUMBERS_HELD // len(pairs)), 0
    for swapped in iterate_exchanges(count, seed, most):
        for tries in np.split(swapped, range(step, len(swapped), step)):
            differences = (1.0 - 2.0 * tries) @ plain
            for i, column in combined.items():
                differences[:, i] = column[start : start + len(tries)]
            start += len(tries)
            yield np.abs(differences)


def scale_values(pair: Pair) -> np.ndarray:
    """[example]: the differences over the standard deviation of their sum under swaps; 0 where one is undefined."""
    differences = np.where(pair.complete, pair.first - pair.second, 0.0)
    sizes = np.abs(np.where(pair.complete, pair.first, 0.0)), np.abs(np.where(pair.complete, pair.second, 0.0))
    differences[np.abs(differences) <= ROUNDING * np.maximum(*sizes)] = 0.0
    differences /= np.abs(differences).max() or 1.0  # the squares of very large ones would be infinite
    return np.asarray(differences / (np.sqrt((differences**2).sum()) or 1.0))


def swap_parts(pair: Pair, exchanges: Iterator[np.ndarray]) -> np.ndarray:
    """[try]: the difference of the combined statistics if these examples are swapped, in its standard deviations."""
    assert pair.combine is not None
    kept = pair.complete
    first, second = pair.first[kept], pair.second[kept]
    differences = []
    for swapped in (row for tries in exchanges for row in tries[:, kept]):
        swap = swapped.reshape(-1, *(1,) * (first.ndim - 1))
        differences.append(pair.combine(np.where(swap, second, first)) - pair.combine(np.where(swap, first, second)))
    found = np.nan_to_num(differences)  # an undefined statistic is no difference
    return np.asarray(found / (found.std() or 1.0))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of the ranks, ties sharing their mean rank; NaN if one of the two is constant."""
    first, second = rankdata(a) - (len(a) + 1) / 2, rankdata(b) - (len(b) + 1) / 2
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / scale) if scale else float("nan")
