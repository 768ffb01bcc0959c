r"""The uncertainty of a mean: bootstrap intervals, paired permutation tests and Holm's correction for multiple tests.

Examples with an undefined value (NaN) are left out; a pair needs both values. The random generator depends on `seed`
alone, so the same values give bit-identical results.

The bootstrap draws n of the n examples with replacement; the interval is the middle 95 % of the resampled means (Efron
1979). The paired test asks how often the mean difference would be at least as large if the two methods were swapped at
random in every example:

$$ p = \Pr_{s \in \{-1, 1\}^n}\left( \left|\sum_i s_i d_i\right| \ge \left|\sum_i d_i\right| \right) $$

(Fisher 1935). For small n all $2^n$ swaps are tried, otherwise many random ones plus the observed one.
For a statistic of the whole data set, such as mean IoU, `combine` computes it from the parts [example k] of the
examples drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

Numbers: TypeAlias = Sequence[float] | Any  # a list, an array or a tensor of numbers
Combiner: TypeAlias = Callable[[Any], float]  # [example k] -> one number

RESAMPLES = 2_000
EXCHANGES = 10_000
COMBINED_EXCHANGES = 2_000  # fewer, because `combine` runs for each
MAX_EXACT_PAIRS = 13  # up to this many pairs all swaps are tried
MAX_NUMBERS_HELD = 4_000_000  # in memory at once while drawing


def bootstrap(
    values: Numbers, seed: int = 0, *, level: float = 0.95, combine: Combiner | None = None
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


def paired_test(a: Numbers, b: Numbers, seed: int = 0, *, combine: Combiner | None = None) -> float:
    """The p-value of the difference between the pairs: small if a and b differ. NaN without any complete pair."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a and b must have the same shape to be paired, got {first.shape} and {second.shape}")
    both = find_complete_rows(~np.isnan(first) & ~np.isnan(second))
    first, second = first[both], second[both]
    if not len(first):
        return float("nan")
    if combine is None:
        return compute_mean_p_value(first - second, seed)
    return compute_combined_p_value(first, second, seed, combine)


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


def drop_undefined(values: Numbers) -> np.ndarray:
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


def compute_mean_p_value(differences: np.ndarray, seed: int) -> float:
    means = [
        np.where(swapped, -differences, differences).mean(1)
        for swapped in iterate_exchanges(len(differences), seed, EXCHANGES)
    ]
    return compute_p_value(np.concatenate(means))


def compute_combined_p_value(first: np.ndarray, second: np.ndarray, seed: int, combine: Combiner) -> float:
    differences = []
    for tries in iterate_exchanges(len(first), seed, COMBINED_EXCHANGES):
        for swapped in tries:
            swap = swapped.reshape(-1, *(1,) * (first.ndim - 1))
            differences.append(combine(np.where(swap, second, first)) - combine(np.where(swap, first, second)))
    return compute_p_value(np.array(differences))


def compute_p_value(differences: np.ndarray) -> float:
    """The share of tries whose difference is at least as far from 0 as the observed one, which is the first.

    The tolerance keeps rounding errors from deciding ties.
    """
    observed = abs(differences[0])
    return float((np.abs(differences) >= observed - 1e-12 * max(1.0, observed)).mean())
