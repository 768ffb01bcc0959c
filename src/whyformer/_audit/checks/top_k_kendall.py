r"""How differently two measures order their k highest tokens: 0 for the same order, 1 for lists without a common token.

$$ K^{(p)}(a, b) = \frac{\sum_{\{i, j\} \subseteq T_a \cup T_b} \kappa_{ij}}{k^2 + p\,k (k - 1)} $$

$T_a$ and $T_b$ are the k highest tokens of each measure, and the penalty $\kappa_{ij}$ of a pair is

    both in both lists                        1 if their orders differ
    both in one list, one of them in the other      1 if the one that both lists have is the lower
    one in one list only, the other in the other only       1
    both in one list only                     p, since the other list does not say

Fagin, Kumar & Sivakumar, Comparing top k lists, SIAM J. Discrete Math. 2003, DOI 10.1137/S0895480102412856. The divisor
is the distance of two lists without a common token. Ties keep the order of the tokens.

Jain & Wallace's repository has this distance beside Kendall's tau, with k a tenth of the mean length but at least 10
and p = 0.5. Its code leaves out the third case and divides by the squared size of the union, so that lists without a
common token have a distance near 1/8 and not 1. Ours follows the definition; k is taken from the length of the example.
"""

from collections.abc import Sequence

import numpy as np

LEAST_K, SHARE = 10, 0.1


def choose_k(length: int) -> int:
    """A tenth of the tokens, but at least 10, as far as there are so many."""
    return min(length, max(LEAST_K, round(SHARE * length)))


def top_k_kendall(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, k: int, p: float = 0.5) -> float:
    """The distance of the k highest of two rows of scores."""
    first, second = rank_top(np.asarray(a, dtype=np.float64), k), rank_top(np.asarray(b, dtype=np.float64), k)
    union = np.flatnonzero(np.isfinite(first) | np.isfinite(second))
    x, y = first[union], second[union]
    i, j = np.triu_indices(len(union), 1)
    in_x, in_y = np.isfinite(x[i]) & np.isfinite(x[j]), np.isfinite(y[i]) & np.isfinite(y[j])
    neither_x, neither_y = ~np.isfinite(x[i]) & ~np.isfinite(x[j]), ~np.isfinite(y[i]) & ~np.isfinite(y[j])
    is_unknown = (in_x & neither_y) | (in_y & neither_x)
    # A token outside a list comes after all of it, so the remaining cases are one: the two lists differ in the order.
    differs = ~is_unknown & ((x[i] < x[j]) != (y[i] < y[j]))
    return float((differs.sum() + p * is_unknown.sum()) / (k * k + p * k * (k - 1)))


def rank_top(scores: np.ndarray, k: int) -> np.ndarray:
    """The rank of each of the k highest, starting at 0; infinite for the others."""
    ranks = np.full(len(scores), np.inf)
    ranks[np.argsort(-scores, kind="stable")[:k]] = np.arange(k)
    return ranks
