r"""The weights of the sources, from one relevance pass and coded ablations.

Sources get the columns of a Hadamard matrix of order 16: that with column $i$ is kept in word $k$ if $k$ and $i$, in
binary, have an even number of ones in common. Each word keeps about half of the sources. The first source $t$, that
with the highest relevance $r$, has column 8 alone; the others, highest $|r|$ first, have those of COLUMNS, again and
again. The first eight columns have an odd number of ones: the effect of none of these sources is confounded with that
of two others together, a design of resolution IV (Box & Hunter 1961).

$$ u = \lambda \mu + V X^\top (X V X^\top + \sigma^2)^{-1} (y - \lambda X \mu) , \qquad
   V_{jj} \propto |\mu_j| + 0.3 \, \bar{|\mu|} $$

is the posterior mean of a linear model of the log-odds $y$ of ablations $X$, both centred, $y$ scaled, with $\mu = r$
and $\lambda$ fitted too. There are three such models: of the ranks of all log-odds, where the weight of $t$ is free; of
the log-odds with $t$, and of those without it. These are two regimes whose log-odds spread differently (by a factor of
20 on demo/reader), so that one fit to both follows the second alone. The weights are those of the ranks, the others
turned into the mean direction of the three (the ranks count 1.5 times): weights that predict the order of the log-odds.
Ours; the linear surrogate of ablations is ContextCite's (arXiv:2409.00729).
"""

import numpy as np
from numpy.typing import NDArray

NOISE = 0.6  # of scaled log-odds
RANK_NOISE = 1.5  # of scaled ranks
SPREAD = 4.0  # of the weights around their mean, beside those of independent sources
FREE = 20.0  # the same, of the first source in the ranks: hardly held back
RANKS_COUNT = 1.5  # how often the direction of the ranks counts, beside once for each regime
NOTHING = 1e-9  # of the weights: the others' share of them below which only rounding is left
EQUAL = 0.3  # of the mean magnitude of the prior: the part of the spread that is the same for all sources
WORDS = (1, 9, 2, 10, 4, 12, 7, 15, 3, 11, 5, 13, 6, 14, 8)  # most useful first; word 0 keeps all sources
FIRST_COLUMN = 8
COLUMNS = (1, 2, 4, 7, 11, 13, 14, 3, 5, 6, 9, 10, 12, 15)  # of the other sources

Vector = NDArray[np.float64]
Table = NDArray[np.bool_]


def order_others(relevance: Vector, first: int) -> list[int]:
    return [int(j) for j in np.argsort(-np.abs(relevance), kind="stable") if j != first]


def code_ablations(relevance: Vector, first: int) -> Table:
    """[n source]: the words of the code that leave something out, most useful first, none of them twice."""
    columns = np.full(len(relevance), FIRST_COLUMN)
    columns[order_others(relevance, first)] = np.resize(COLUMNS, len(relevance) - 1)
    rows = [tuple((word & int(column)).bit_count() % 2 == 0 for column in columns) for word in WORDS]
    return np.array([row for row in dict.fromkeys(rows) if not all(row)])


def estimate_weights(keep: Table, log_odds: Vector, relevance: Vector, first: int) -> Vector:
    """[source]: from ablations [n source] with their log-odds [n]."""
    others = np.array([j for j in range(len(relevance)) if j != first], dtype=int)
    prior = to_unit(np.where(np.arange(len(relevance)) == first, 0.0, relevance))
    spread = spread_around(prior)
    spread[first] = FREE
    weights = fit_weights(keep, rank_values(log_odds), prior, spread, RANK_NOISE)
    there = keep[:, first]
    size, least = np.linalg.norm(weights[others]), NOTHING * np.linalg.norm(weights)
    minor = RANKS_COUNT * to_unit(weights[others]) if size > least else np.zeros(len(others))
    expected = prior[others]
    for rows in (there, ~there):
        found = fit_weights(keep[rows][:, others], log_odds[rows], expected, spread_around(expected), NOISE)
        minor += to_unit(found)
    weights[others] = to_unit(minor) * max(size, least)
    scaled: Vector = weights * log_odds.std()
    return scaled


def rank_values(values: Vector) -> Vector:
    """Ranks, the mean of them for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Vector = (np.cumsum(counts) - counts / 2)[inverse]
    return ranks


def spread_around(prior: Vector) -> Vector:
    """The variances of the weights: in proportion to the prior, and a part that is equal."""
    spread = np.abs(prior) + EQUAL * np.abs(prior).mean() + 1e-12
    scaled: Vector = spread * (SPREAD / spread.sum())
    return scaled


def fit_weights(keep: Table, values: Vector, prior: Vector, spread: Vector, noise: float) -> Vector:
    """The posterior mean of the weights of rows [n source], around as much of the prior as fits."""
    if len(values) < 2 or np.ptp(values) == 0:
        return prior
    x, y = keep - keep.mean(0), (values - values.mean()) / values.std()
    expected = x @ prior
    size = expected @ expected
    scale = np.clip((expected @ y) / size, 0.0, SPREAD) if size > 0 else 0.0
    gain = (x * spread) @ x.T + noise * np.eye(len(y))
    found: Vector = scale * prior + spread * (x.T @ np.linalg.solve(gain, y - scale * expected))
    return found


def to_unit(vector: Vector) -> Vector:
    norm = np.linalg.norm(vector)
    return vector / norm if norm else vector
