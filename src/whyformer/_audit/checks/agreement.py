r"""Does attention rank the tokens as measures of importance do?

$$ \tau_b = \frac{C - D}{\sqrt{(C + D + T_a)(C + D + T_b)}} $$

over the words (or patches) of one example: C pairs in the same order, D in opposite order, T tied in one of the two.
Jain & Wallace, Attention is not Explanation, NAACL 2019, section 4.1. arXiv:1902.10186

They compare attention with two measures of a token's importance for the predicted probability p:

$$ g_t = |e_t \cdot \partial p / \partial e_t|, \qquad \Delta_t = |p - p_{-t}| $$

the gradient with the attention weights constant (we also report it without), and the change when the token is left
out (deleted, as in the paper; we also report it with a mask token in its place). Special tokens and padding are
excluded. If one of the two measures is constant, or there are fewer than two tokens, the correlation is undefined: it
is counted as such and excluded from every mean. Spearman, Pearson and the overlap of the highest tokens are our
additions; the distance of the k highest is in the authors' repository.

`top_k_kendall`: how differently two measures order their k highest tokens, 0 for the same order, 1 for lists without a
common token.

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

import math
from collections.abc import Mapping, Sequence

import numpy as np

SIGNIFICANCE_LEVEL = 0.05
AGREEMENT_MEASURES = ("tau", "spearman", "pearson", "overlap")
TOP_K_DISTANCE = "top_k"  # not in audits saved by version 0.1
GRADIENT, GRADIENT_THROUGH = "gradient, attention held", "gradient"
DELETED, MASKED, REMOVED = "leave-one-out, deleted", "leave-one-out, masked", "leave-one-out, removed"
PairCorrelations = dict[str, dict[str, float | None]]  # "attention ~ gradient" -> its correlations
YARDSTICKS = ((GRADIENT, DELETED), (GRADIENT, MASKED), (GRADIENT, REMOVED))


def correlate_attention(
    attention: Sequence[float], measures: Mapping[str, Sequence[float]], *, top: float = 0.2
) -> PairCorrelations:
    """Attention against every measure, and gradient against leave-one-out as a yardstick."""
    pairs = {
        f"attention ~ {name}": measure_correlations(attention, scores, top=top) for name, scores in measures.items()
    }
    for a, b in YARDSTICKS:
        if a in measures and b in measures:
            pairs[f"{a} ~ {b}"] = measure_correlations(measures[a], measures[b], top=top)
    return pairs


def measure_correlations(a: Sequence[float], b: Sequence[float], *, top: float = 0.2) -> dict[str, float | None]:
    """All measures of agreement of two rows of scores; None where they are undefined.

    overlap: the share of common tokens among the `top` share of the tokens (at least one) of each row; `by_chance` is
    the overlap expected by chance. top_k: the Kendall distance of the highest tokens, 0 to 1.
    """
    from scipy import stats

    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"cannot compare scores of shapes {first.shape} and {second.shape}")
    if len(first) < 2 or is_nearly_constant(first) or is_nearly_constant(second):
        return dict.fromkeys((*AGREEMENT_MEASURES, TOP_K_DISTANCE, "p", "by_chance"))
    tau = stats.kendalltau(first, second)
    highest = min(max(1, round(top * len(first))), len(first) - 1)
    best = [set(np.argsort(-scores, kind="stable")[:highest].tolist()) for scores in (first, second)]
    return {
        "tau": as_finite_float(tau.statistic),
        "p": as_finite_float(tau.pvalue),
        "spearman": as_finite_float(stats.spearmanr(first, second).statistic),
        "pearson": as_finite_float(np.corrcoef(first, second)[0, 1]),
        "overlap": len(best[0] & best[1]) / highest,
        "by_chance": highest / len(first),
        TOP_K_DISTANCE: top_k_kendall(first, second, choose_k(len(first))),
    }


def is_nearly_constant(scores: np.ndarray) -> bool:
    """All equal up to rounding: a softmax over equal scores differs in the last bits."""
    span = float(scores.max() - scores.min())
    return not span > 1e-7 * max(abs(float(scores.max())), abs(float(scores.min())))


def as_finite_float(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# --- distance of the highest k ----------------------------------------------------------------------------------------


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
