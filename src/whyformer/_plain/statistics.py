r"""How sure a mean is: bootstrap intervals, paired tests by exchanging labels, and Holm's correction for many tests.

An example for which a number is undefined (NaN) takes no part; a pair needs both its numbers. All draws come from a
generator seeded by `seed` alone, so that the same numbers give the same result, bit for bit.

The bootstrap draws n of the n examples with replacement and takes the middle 95 % of the means (Efron 1979). The paired
test asks how often the mean difference would be as large if the two methods could be exchanged in every example:

$$ p = \Pr_{s \in \{-1, 1\}^n}\left( \left|\sum_i s_i d_i\right| \ge \left|\sum_i d_i\right| \right) $$

(Fisher 1935), over all $2^n$ exchanges where there are few, else over many random ones, the observed one counted in.
Figures of a whole data set, such as a mean IoU, are made by `combine` from the parts [example k] of the examples drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

Numbers: TypeAlias = Sequence[float] | Any  # a list, an array or a tensor of numbers
Combiner: TypeAlias = Callable[[Any], float]  # [example k] -> one number

RESAMPLES = 2_000
EXCHANGES = 10_000
COMBINED_EXCHANGES = 2_000  # exchanges where the figure of a whole data set is made anew for each
MAX_EXACT_PAIRS = 13  # up to so many pairs all exchanges are tried
MAX_NUMBERS_HELD = 4_000_000  # numbers held while drawing


def bootstrap(
    values: Numbers, seed: int = 0, *, level: float = 0.95, combine: Combiner | None = None
) -> tuple[float, float, float]:
    """The mean and the two ends of its interval; with `combine`, what that makes of the parts [example k]."""
    held = drop_undefined(values)
    if not len(held):
        return float("nan"), float("nan"), float("nan")
    middle = float(held.mean()) if combine is None else float(combine(held))
    if len(held) == 1:  # nothing to draw from
        return middle, float("nan"), float("nan")
    drawn = (held[rows] for rows in draw_resamples(len(held), np.random.default_rng(seed)))
    if combine is None:
        means = np.concatenate([one.mean(1) for one in drawn])
    else:
        means = np.array([combine(rows) for one in drawn for rows in one])
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2])
    return middle, float(low), float(high)


def paired_test(a: Numbers, b: Numbers, seed: int = 0, *, combine: Combiner | None = None) -> float:
    """How likely a difference as large as between these pairs is if both are alike; NaN where there is no pair."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"{first.shape} and {second.shape} are not paired")
    both = find_complete_rows(~np.isnan(first) & ~np.isnan(second))
    first, second = first[both], second[both]
    if not len(first):
        return float("nan")
    if combine is None:
        return compute_mean_p_value(first - second, seed)
    return compute_combined_p_value(first, second, seed, combine)


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """The same p-values, corrected for being many: what is below 0.05 after this is one false alarm in 20 at most."""
    adjusted = [float("nan")] * len(p_values)
    known = sorted((i for i, p in enumerate(p_values) if p == p), key=lambda i: p_values[i])
    largest = 0.0
    for place, i in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - place) * p_values[i]))
        adjusted[i] = largest
    return adjusted


# --- inside -----------------------------------------------------------------------------------------------------------


def drop_undefined(values: Numbers) -> np.ndarray:
    held = np.asarray(values, dtype=np.float64)
    return held[find_complete_rows(~np.isnan(held))]


def find_complete_rows(known: np.ndarray) -> np.ndarray:
    """An example counts if all its numbers are known."""
    return np.asarray(known.all(axis=tuple(range(1, known.ndim))))


def draw_resamples(count: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Examples drawn with replacement, [draw example], a part of the draws at a time."""
    step = max(1, MAX_NUMBERS_HELD // count)
    for start in range(0, RESAMPLES, step):
        yield generator.integers(count, size=(min(step, RESAMPLES - start), count))


def iterate_exchanges(count: int, seed: int, most: int) -> Iterator[np.ndarray]:
    """Which pairs are exchanged, [try pair] of bool; the first try of all exchanges none."""
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
        np.where(turned, -differences, differences).mean(1)
        for turned in iterate_exchanges(len(differences), seed, EXCHANGES)
    ]
    return compute_p_value(np.concatenate(means))


def compute_combined_p_value(first: np.ndarray, second: np.ndarray, seed: int, combine: Combiner) -> float:
    found = []
    for tries in iterate_exchanges(len(first), seed, COMBINED_EXCHANGES):
        for turned in tries:
            swap = turned.reshape(-1, *(1,) * (first.ndim - 1))
            found.append(combine(np.where(swap, second, first)) - combine(np.where(swap, first, second)))
    return compute_p_value(np.array(found))


def compute_p_value(found: np.ndarray) -> float:
    """The share of tries at least as far from 0 as the first, which is what was observed; rounding does not decide."""
    observed = abs(found[0])
    return float((np.abs(found) >= observed - 1e-12 * max(1.0, observed)).mean())
