r"""The weights of the sources, from one relevance pass and nine ablations.

The first source $t$ has the highest relevance $r$. The others, highest $|r|$ first, get the code words of a Hadamard
matrix: source number $i$ is kept in ablation $k$ if $k$ and $i$, in binary, have an even number of ones in common. Each
of the four words keeps about half of the sources and is run with $t$ and without it; beside these, there are the whole
prompt and the prompt without $t$ alone. The effect of a source is the mean of the log-odds with it minus that without.

* *one* decides, if the log-odds fall without $t$ and no other source has an effect while $t$ is there;
* *together*: another one has, and takes it with its code word;
* *either*: the log-odds do not fall without $t$; the other one is that with the effect while $t$ is missing;
* if that one has the same effect while $t$ is there, it decides alone: the relevance was wrong;
* *against*: a source has a strongly negative effect.

A source that decides weighs as much as its effect. The others are ordered by

$$ w_R \propto \frac{u_1}{\lVert u_1 \rVert} + \frac{u_0}{\lVert u_0 \rVert} + \frac{u}{\lVert u \rVert} $$

where $u_1$ is fitted to the ablations in which what decides is there and $u_0$ to the others: two regimes whose
log-odds spread differently (by a factor of 20 on demo/reader), so that one fit to both follows the second alone. $u$ is
fitted to the ranks of all. Each is the posterior mean of a linear model,

$$ u = \mu + V X^\top (X V X^\top + \sigma^2)^{-1} (y - X \mu) , \qquad
   \mu = \lambda r , \quad V_{jj} \propto |r_j| + \bar{|r|} $$

with $X$ and $y$ centred, and $y$ scaled, in each pattern of what decides. The others never outweigh it.
Ours; the linear surrogate of ablations is ContextCite's (arXiv:2409.00729), the code that of Plackett & Burman (1946).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOISE = 0.1  # of scaled log-odds
SPREAD = 4.0  # of the weights around their mean, beside those of independent sources
LEAST = 0.5  # of the smallest deciding weight: what all others sum to
CODES = 4  # code words, each with and without the first source
LONGEST = 15  # sources that words of four bits tell apart
NEEDED = 0.3  # of the log-odds: what leaving out a source that is needed takes at least
OPPOSED = 0.6  # of the range of the log-odds: the effect of a source that speaks against the answer
PARTNER = 0.1  # of the range of the log-odds: the effect of a source that decides together with the first
PARTNER_WEIGHT = 0.7  # of its effect, because it counts only with the first
RELEVANT = 0.3  # how much relevance counts beside the explained variance, when a partner is looked for

Vector = NDArray[np.float64]
Table = NDArray[np.bool_]


def code_blocks(relevance: Vector, first: int, blocks: int) -> list[list[int]]:
    """The sources other than the first, highest magnitude first, dealt into blocks to be left out."""
    order = order_others(relevance, first)
    return [order[start::blocks] for start in range(min(blocks, len(order)))]


def order_others(relevance: Vector, first: int) -> list[int]:
    return [int(j) for j in np.argsort(-np.abs(relevance), kind="stable") if j != first]


def code_ablations(relevance: Vector, first: int) -> Table:
    """[2 * CODES + 2, source]: all sources, all but the first, and every code word with and without the first."""
    keep = np.ones((2 * CODES + 2, len(relevance)), dtype=bool)
    for rank, source in enumerate(order_others(relevance, first)):
        word = [(code & (rank % LONGEST + 1)).bit_count() % 2 == 0 for code in range(1, CODES + 1)]
        keep[2:, source] = word * 2
    keep[1, first] = keep[2 + CODES :, first] = False
    return keep


@dataclass(frozen=True)
class Design:
    """Ablations [n source] with their log-odds [n]."""

    keep: Table
    log_odds: Vector

    def measure_effect(self, source: int, rows: Table | slice = slice(None)) -> float:
        """The mean with this source minus the mean without it, among these rows."""
        kept, y = self.keep[rows, source], self.log_odds[rows]
        return float(y[kept].mean() - y[~kept].mean()) if kept.any() and not kept.all() else 0.0

    def explain_variance(self, source: int, rows: Table) -> float:
        """The share of the variance of these rows that lies between those with and without this source."""
        kept, y = self.keep[rows, source], self.log_odds[rows]
        whole = float(((y - y.mean()) ** 2).sum())
        left = sum(float(((some - some.mean()) ** 2).sum()) for some in (y[kept], y[~kept]) if len(some))
        return 1 - left / whole if whole else 0.0


def estimate_weights(keep: Table, log_odds: Vector, relevance: Vector, first: int) -> Vector:
    """[source]: from ablations [n source], among them all sources and all but the first, with their log-odds [n]."""
    design = Design(keep, log_odds)
    decisive, each_is_enough = find_decisive(design, relevance, first)
    needed = list(decisive)
    decisive |= find_opposed(design, needed)
    sources = list(decisive)
    others = np.array([j for j in range(keep.shape[1]) if j not in decisive], dtype=int)
    weights = np.zeros(keep.shape[1])
    weights[sources] = list(decisive.values())
    if not len(others):
        return weights
    prior = to_unit(relevance[others])
    there = keep[:, needed].any(1) if each_is_enough else keep[:, needed].all(1)
    minor = to_unit(fit_ranks(keep, log_odds, relevance, needed[0])[others])
    for rows in (there, ~there):
        x, y = centre_patterns(keep[rows], log_odds[rows], sources, others)
        minor += to_unit(fit_weights(x, y, prior, spread_around(prior)) if len(y) else prior)
    total = np.abs(minor).sum()
    least = min(abs(weight) for weight in decisive.values())
    weights[others] = minor * (LEAST * least / total if total else 0.0)
    return weights


def find_decisive(design: Design, relevance: Vector, first: int) -> tuple[dict[int, float], bool]:
    """The weights of the sources that decide, and whether each of them is enough."""
    whole = design.keep.all(1)
    alone = ~design.keep[:, first] & (design.keep.sum(1) == design.keep.shape[1] - 1)
    full = float(design.log_odds[whole].mean())
    is_needed = full - float(design.log_odds[alone].mean()) >= max(math.log(2), NEEDED * abs(full))
    effect = max(design.measure_effect(first), math.log(2))
    candidates = order_others(relevance, first)
    if not candidates:
        return {first: effect}, False
    there = design.keep[:, first]
    rows = there if is_needed else ~there
    likely = np.maximum(relevance, 0) / max(float(relevance.max()), np.finfo(float).tiny)

    def rate(source: int) -> float:
        explained = design.explain_variance(source, rows) if design.measure_effect(source, rows) > 0 else 0.0
        return explained + (RELEVANT if is_needed else 1.0) * float(likely[source])

    other = max(candidates, key=rate)
    found, spread = design.measure_effect(other, rows), float(np.ptp(design.log_odds))
    if is_needed:
        if found <= PARTNER * spread:
            return {first: effect}, False
        return {first: effect, other: PARTNER_WEIGHT * min(design.measure_effect(other), effect)}, False
    if found > NEEDED * spread and design.measure_effect(other, there) > found / 2:
        return {other: design.measure_effect(other)}, False
    share = max(effect, found / 2)
    return {first: share, other: share}, True


def find_opposed(design: Design, needed: list[int]) -> dict[int, float]:
    """The source without which the log-odds rise most, if that is much."""
    effects = {j: design.measure_effect(j) for j in range(design.keep.shape[1]) if j not in needed}
    lowest = min(effects, key=lambda j: effects[j], default=None)
    is_strong = lowest is not None and effects[lowest] < -max(OPPOSED * float(np.ptp(design.log_odds)), math.log(2))
    return {lowest: effects[lowest]} if lowest is not None and is_strong else {}


def fit_ranks(keep: Table, log_odds: Vector, relevance: Vector, first: int) -> Vector:
    """[source]: the posterior mean of the weights in a linear model of the ranks; that of the first is free."""
    values, inverse, counts = np.unique(log_odds, return_inverse=True, return_counts=True)
    if len(values) < 2:
        return relevance
    ranks = (np.cumsum(counts) - counts / 2)[inverse]
    prior = to_unit(np.where(np.arange(len(relevance)) == first, 0.0, relevance))
    spread = spread_around(prior)
    spread[first] = SPREAD
    return fit_weights(keep - keep.mean(0), (ranks - ranks.mean()) / ranks.std(), prior, spread)


def spread_around(prior: Vector) -> Vector:
    """The variances of the weights: half in proportion to the prior, half equal."""
    spread = np.abs(prior) + np.abs(prior).mean() + 1e-12
    scaled: Vector = spread * (SPREAD / spread.sum())
    return scaled


def fit_weights(x: Vector, y: Vector, prior: Vector, spread: Vector) -> Vector:
    """The posterior mean of the weights of rows [n source], around as much of the prior as fits."""
    expected = x @ prior
    size = expected @ expected
    scale = np.clip((expected @ y) / size, 0.0, SPREAD) if size > 0 else 0.0
    gain = (x * spread) @ x.T + NOISE * np.eye(len(y))
    found: Vector = scale * prior + spread * (x.T @ np.linalg.solve(gain, y - scale * expected))
    return found


def centre_patterns(
    keep: Table, log_odds: Vector, sources: list[int], others: NDArray[np.intp]
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
