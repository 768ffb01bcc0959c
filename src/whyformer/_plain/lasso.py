r"""The lasso: a linear model with few weights that are not zero.

$$ \min_{w, b} \; \frac{1}{2n} \sum_i \bigl(y_i - b - w \cdot \tilde z_i\bigr)^2 + \alpha \lVert w \rVert_1 , \qquad
   \tilde z_{ij} = \frac{z_{ij} - \bar z_j}{\sigma_j} $$

Tibshirani, Regression Shrinkage and Selection via the Lasso, JRSS B 1996. The solution is followed from the largest
penalty at which a weight is not zero down to $\alpha$ (Efron, Hastie, Johnstone & Tibshirani, Least Angle Regression,
Annals of Statistics 2004, section 3.1): between two penalties at which a weight joins or leaves, the weights $A$ that
are not zero are linear in $\alpha$,

$$ \tfrac{1}{n} \tilde z_A^\top \tilde z_A \, w_A = \tfrac{1}{n} \tilde z_A^\top y - \alpha \operatorname{sign} w_A , $$

so the result is exact. Where features are copies of each other, the first one gets the weight of all. Then coordinate
descent (Friedman, Hastie & Tibshirani 2010) moves what such ties have left undone, usually nothing.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-9  # of the largest answer
MOST_SWEEPS = 1_000


class LinearFit(NamedTuple):
    """answer = intercept + weights . features"""

    weights: Tensor  # [feature], of the features as they were given, not of the standardised ones
    intercept: float
    r2: float  # explained share of the variance; 1 if the answers are constant


def fit_lasso(features: Tensor, answers: Tensor, penalty: float) -> LinearFit:
    """The lasso of features [n feature] on answers [n], in float64; a constant feature gets 0."""
    z, y = features.double().numpy(), answers.double().numpy()
    mean, scale = z.mean(0), z.std(0)
    scale[scale == 0] = 1
    standardised, centred = (z - mean) / scale, y - y.mean()
    weights = descend_coordinates(standardised, centred, penalty, follow_path(standardised, centred, penalty))
    left = centred - standardised @ weights
    variance = float((centred**2).sum())
    r2 = 1 - float((left**2).sum()) / variance if variance > 0 else 1.0
    original = weights / scale
    return LinearFit(torch.from_numpy(original), float(y.mean() - original @ mean), r2)


def follow_path(z: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """[feature]: the weights for standardised features z [n feature] and centred answers y [n]."""
    n, weights = len(y), np.zeros(z.shape[1])
    left = y @ z / n  # [feature]: how each one correlates with what the weights leave of the answers
    now = float(np.abs(left).max(initial=0))
    if now <= penalty:
        return weights
    active = [int(np.abs(left).argmax())]
    allowed = np.ones(z.shape[1], dtype=bool)  # not a combination of those in use
    for _ in range(8 * (n + z.shape[1])):
        if not active:
            break
        direction = np.linalg.solve(z[:, active].T @ z[:, active] / n, np.sign(left[active]))
        turn = z[:, active] @ direction @ z / n  # how fast the correlations fall: those in use by 1 times their sign
        waiting = allowed.copy()
        waiting[active] = False
        join, joins = find_join(now, left, turn, waiting)
        leave, leaves = find_leave(weights[active], direction)
        step = min(join, leave, now - penalty)
        weights[active] += step * direction
        left, now = left - step * turn, max(now - step, penalty)
        if now <= penalty:
            break
        if leave <= join:
            weights[active[leaves]] = 0
            del active[leaves]
            allowed[:] = True
        elif is_independent(z[:, [*active, joins]]):
            active.append(joins)
        else:
            allowed[joins] = False
    return weights


def find_join(now: float, left: np.ndarray, turn: np.ndarray, waiting: np.ndarray) -> tuple[float, int]:
    """How far the penalty can fall until a waiting feature correlates as much, and which one; infinity if none does."""
    step, joins = np.inf, -1
    for sign in (1, -1):
        slower = np.flatnonzero(waiting & (1 - sign * turn > 1e-12))
        gap = np.maximum((now - sign * left[slower]) / (1 - sign * turn[slower]), 0)
        if len(gap) and gap.min() < step:
            step, joins = float(gap.min()), int(slower[gap.argmin()])
    return step, joins


def find_leave(used: np.ndarray, direction: np.ndarray) -> tuple[float, int]:
    """How far the penalty can fall until a weight in use is zero, and which one; infinity if none gets there."""
    falling = np.flatnonzero(used * direction < 0)
    until = -used[falling] / direction[falling]
    return (float(until.min()), int(falling[until.argmin()])) if len(until) else (np.inf, -1)


def is_independent(columns: np.ndarray) -> bool:
    """The last column is no combination of the others."""
    last = columns[:, -1]
    others = columns[:, :-1]
    rest = last - others @ np.linalg.lstsq(others, last, rcond=None)[0] if others.shape[1] else last
    return bool(np.linalg.norm(rest) > 1e-7 * np.linalg.norm(last))


def descend_coordinates(z: np.ndarray, y: np.ndarray, penalty: float, weights: np.ndarray) -> np.ndarray:
    """The weights after each was set to its best value in turn, again and again, until none moves."""
    weights, left = weights.copy(), y - z @ weights
    settled = TOLERANCE * float(np.abs(y).max(initial=0))
    for _ in range(MOST_SWEEPS):
        moved = 0.0
        for j in np.flatnonzero((weights != 0) | (np.abs(left @ z) > (penalty + settled) * len(y))).tolist():
            before = float(weights[j])
            after = shrink(float(z[:, j] @ left) / len(y) + before, penalty)
            weights[j] = after
            left -= (after - before) * z[:, j]
            moved = max(moved, abs(after - before))
        if moved <= settled:
            break
    return weights


def shrink(value: float, by: float) -> float:
    """Soft thresholding: the value moved towards 0 by so much, and no further than 0."""
    return max(value - by, 0.0) if value > 0 else min(value + by, 0.0)
