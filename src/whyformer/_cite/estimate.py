r"""The weights of the sources, from two relevance passes and a few ablations.

$$ s(z) \approx b + w_D \cdot z_D + w_R \cdot z_R , \qquad
   w_R \propto \frac{u_1}{\lVert u_1 \rVert} + \frac{u_0}{\lVert u_0 \rVert} $$

$D$ are the sources that decide; $w_D$ is what the log-odds fall without them, measured. For the rest, $u_1$ holds where
all of $D$ is kept and $u_0$ where some of it is missing: two regimes whose log-odds spread differently (by a factor of
20 on demo/reader), so that a fit to both follows the second alone. Each is the posterior mean of a linear model,

$$ u = \mu + V X^\top (X V X^\top + \sigma^2)^{-1} (y - X \mu) , \qquad
   \mu = \lambda r , \quad V_{jj} \propto |r_j| + \bar{|r|} $$

with $r$ the relevance with all sources ($u_1$) or without the first one ($u_0$), and $X$, $y$ centred and $y$ scaled in
each pattern of $D$. The rest is scaled so that it never outweighs a source that decides.
Ours; the linear surrogate of ablations is ContextCite's (arXiv:2409.00729).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

NOISE = 0.1  # of scaled log-odds
SPREAD = 4.0  # of the weights around their mean, beside those of independent sources
LEAST = 0.5  # of the smallest deciding weight: what all others sum to

Vector = NDArray[np.float64]
Table = NDArray[np.bool_]


def code_blocks(relevance: Vector, first: int, blocks: int) -> list[list[int]]:
    """The sources other than the first, highest magnitude first, dealt into blocks to be left out."""
    order = [int(j) for j in np.argsort(-np.abs(relevance), kind="stable") if j != first]
    return [order[start::blocks] for start in range(min(blocks, len(order)))]


def estimate_weights(
    keep: Table, log_odds: Vector, decisive: Mapping[int, float], relevance: Vector, without_first: Vector
) -> Vector:
    """[source]: ablations keep [n source] with their log-odds [n], and the measured weights of those that decide."""
    sources = list(decisive)
    others = np.array([j for j in range(keep.shape[1]) if j not in decisive], dtype=int)
    weights = np.zeros(keep.shape[1])
    for source, weight in decisive.items():
        weights[source] = weight
    if not len(others):
        return weights
    has_all = keep[:, sources].all(1)
    minor = np.zeros(len(others))
    for rows, prior in ((has_all, relevance), (~has_all, without_first)):
        minor += to_unit(fit_regime(keep[rows], log_odds[rows], sources, others, to_unit(prior[others])))
    total = np.abs(minor).sum()
    least = min((abs(weight) for weight in decisive.values()), default=1.0)
    weights[others] = minor * (LEAST * least / total if total else 0.0)
    return weights


def fit_regime(
    keep: Table, log_odds: Vector, sources: Sequence[int], others: NDArray[np.intp], prior: Vector
) -> Vector:
    """The posterior mean of the weights of the others; the prior, if there is nothing to learn from."""
    x, y = centre_patterns(keep, log_odds, sources, others)
    if not len(y):
        return prior
    expected = x @ prior
    size = expected @ expected
    scale = np.clip((expected @ y) / size, 0.0, SPREAD) if size > 0 else 0.0
    spread = np.abs(prior) + np.abs(prior).mean() + 1e-12
    spread *= SPREAD / spread.sum()
    gain = (x * spread) @ x.T + NOISE * np.eye(len(y))
    found: Vector = scale * prior + spread * (x.T @ np.linalg.solve(gain, y - scale * expected))
    return found


def centre_patterns(
    keep: Table, log_odds: Vector, sources: Sequence[int], others: NDArray[np.intp]
) -> tuple[Vector, Vector]:
    """Rows [n other] and log-odds [n], centred and scaled for each pattern of the deciding sources."""
    patterns = [tuple(row) for row in keep[:, sources].tolist()]
    rows, values = [np.zeros((0, len(others)))], [np.zeros(0)]
    for pattern in dict.fromkeys(patterns):
        same = np.array([one == pattern for one in patterns])
        y = log_odds[same] - log_odds[same].mean()
        if len(y) < 2 or not y.any():
            continue
        x = keep[same][:, others].astype(float)
        rows.append(x - x.mean(0))
        values.append(y / y.std())
    return np.vstack(rows), np.concatenate(values)


def to_unit(vector: Vector) -> Vector:
    norm = np.linalg.norm(vector)
    return vector / norm if norm else vector
