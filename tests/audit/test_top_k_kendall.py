"""The Kendall distance of the highest tokens: by hand, and as the definition reads."""

from itertools import combinations

import numpy as np
import pytest

from whyformer._audit.checks.agreement import TOP_K_DISTANCE, choose_k, measure_correlations, top_k_kendall


def distance_by_definition(a, b, k, p):
    """Fagin, Kumar & Sivakumar, section 3: every pair of the union, case by case."""
    top = [sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k] for scores in (a, b)]
    total = 0.0
    for i, j in combinations(sorted({*top[0], *top[1]}), 2):
        held = [(i in one, j in one) for one in top]
        if all(held[0]) and all(held[1]):
            total += (top[0].index(i) < top[0].index(j)) != (top[1].index(i) < top[1].index(j))
        elif (all(held[0]) and not any(held[1])) or (all(held[1]) and not any(held[0])):
            total += p
        elif all(held[0]) or all(held[1]):
            whole, part = (0, 1) if all(held[0]) else (1, 0)
            common, other = (i, j) if held[part][0] else (j, i)
            total += top[whole].index(other) < top[whole].index(common)
        else:
            total += 1
    return total / (k * k + p * k * (k - 1))


def test_by_hand():
    assert top_k_kendall([3, 2, 1], [30, 20, 10], 2) == 0
    assert top_k_kendall([4, 3, 0, 0], [0, 0, 4, 3], 2) == 1  # no common token
    # lists (0, 1) and (1, 0): one pair in another order, of at most 4 + 0.5 * 2
    assert top_k_kendall([2, 1, 0], [1, 2, 0], 2) == pytest.approx(1 / 5)
    # lists (0, 1) and (0, 2): 1 and 2 are in one list each (1), 0 is first in both (0)
    assert top_k_kendall([3, 2, 1], [3, 1, 2], 2) == pytest.approx(1 / 5)
    # lists (0, 1) and (1, 2): 0 is above 1 in the first, but not in the second (1); 0 and 2 (1); 1 above 2 (0)
    assert top_k_kendall([3, 2, 1], [1, 3, 2], 2) == pytest.approx(2 / 5)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_equals_the_definition(p):
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 14))
        k = int(rng.integers(1, n + 1))
        a, b = rng.integers(0, 6, (2, n))  # with ties
        found = top_k_kendall(a, b, k, p)
        assert found == pytest.approx(distance_by_definition(a.tolist(), b.tolist(), k, p), abs=1e-12)
        assert 0 <= found <= 1 and found == pytest.approx(top_k_kendall(b, a, k, p), abs=1e-12)


def test_all_tokens_without_ties_is_kendalls_tau():
    """With k = n every pair is in both lists: the share of pairs in another order, scaled by the divisor."""
    from scipy import stats

    a, b = np.random.default_rng(1).permutation(9), np.random.default_rng(2).permutation(9)
    differ = (1 - stats.kendalltau(a, b).statistic) / 2 * 36
    assert top_k_kendall(a, b, 9) == pytest.approx(differ / (81 + 0.5 * 72))


def test_k_is_a_tenth_but_at_least_ten():
    assert [choose_k(n) for n in (1, 9, 10, 50, 200)] == [1, 9, 10, 10, 20]


def test_is_among_the_measures_of_agreement():
    a, b = np.arange(30.0), np.arange(30.0)[::-1]
    assert measure_correlations(a, a)[TOP_K_DISTANCE] == 0
    assert measure_correlations(a, b)[TOP_K_DISTANCE] == 1
    assert measure_correlations(a, np.ones(30))[TOP_K_DISTANCE] is None
