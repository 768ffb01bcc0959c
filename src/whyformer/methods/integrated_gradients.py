r"""Integrated gradients.

$$ s_j = \sum_c (x_{jc} - b_{jc}) \int_0^1 \frac{\partial y}{\partial x_{jc}}\bigl(b + \alpha (x - b)\bigr)\,d\alpha,
   \qquad \sum_j s_j = y(x) - y(b) $$

from a baseline $b$ without information to the input $x$.
Sundararajan, Taly & Yan, Axiomatic Attribution for Deep Networks, ICML 2017, eq. 1 to 3. arXiv:1703.01365

The paper approximates the integral by a Riemann sum of 20 to 300 steps and recommends checking the right-hand equation
(completeness). We use Gauss-Legendre points, which are exact for polynomials up to degree $2n - 1$, and double their
number $n$ until completeness holds to `tolerance`, for each example separately. The error is always reported:
`details["completeness_error"]` is $|\sum_j s_j - (y(x) - y(b))|$, `details["difference"]` is $y(x) - y(b)$, and
`details["steps"]` the number of points.

For a text, $x$ is the input of the first block. The baseline "zero" removes the words and keeps positions and special
tokens; "mask", "pad" and "unknown" replace each word by that token. For an image, "zero" is 0 after normalisation; the
others are "black", "mean" (its mean colour), "blur" and "noise".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy
import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._model import IMAGE_FILLS
from whyformer._plain.progress import show_progress
from whyformer._plain.setting_checks import allow_choice, allow_number, allow_whole_number
from whyformer.methods._registry import Scores, method
from whyformer.methods._settings import check_method_settings

POINTS_PER_PASS = 64  # points per forward and backward pass
FEWEST_STEPS = 8
allow_steps = allow_whole_number(1, 4096)  # the points are eigenvalues of a matrix of that size


@method(
    paper="Sundararajan et al., ICML 2017",
    class_specific=True,
    signed=True,
    cost="a forward and a backward for each of 8 to 2 x `most_steps` points",
)
@check_method_settings(
    baseline=allow_choice((*IMAGE_FILLS, "mask", "unknown", "pad")),
    steps=allow_steps,
    most_steps=allow_steps,
    tolerance=allow_number("> 0 (for example 0.01)", above=0, limit=1e6),
)
def integrated_gradients(
    probe: Probe,
    *,
    baseline: str = "zero",
    steps: int | None = None,
    tolerance: float = 0.01,
    most_steps: int = 256,
    seed: int = 0,
) -> Scores:
    """How much each token or pixel adds to the explained output on the straight path from a baseline; signed.

    baseline: "zero"; for texts "mask", "pad" or "unknown"; for images "black", "mean", "blur" or "noise".
    steps: a fixed number of points; by default 8, doubled until the scores sum to the difference, at most `most_steps`.
    tolerance: the allowed completeness error, as a fraction of the difference.
    seed: for the baseline "noise".
    """
    plan = plan_step_counts(steps, most_steps)
    start = probe.baseline(baseline, seed=seed)
    start = start.where(~probe.leaf.isnan(), probe.leaf)  # a missing number stays missing along the path
    path = IntegrationPath(probe, start, (probe.leaf - start).nan_to_num())
    twice = torch.arange(probe.batch).repeat(2)
    ends = probe.run_at_leaf(torch.cat([start, probe.leaf]), twice, gradient=False)[0].score.double().cpu()
    difference = ends[probe.batch :] - ends[: probe.batch]
    scores = torch.zeros(start.shape[:-1], dtype=torch.float64)
    error = torch.full((probe.batch,), torch.inf, dtype=torch.float64)
    taken = torch.zeros(probe.batch, dtype=torch.long)
    for points in plan:
        left = (error > tolerance * difference.abs()).nonzero()[:, 0]
        if not len(left):
            break
        scores[left] = path.integrate(points, left)
        error[left] = (scores[left].flatten(1).sum(1) - difference[left]).abs()
        taken[left] = points
    return Scores(scores, {"completeness_error": error, "difference": difference, "steps": taken.double()})


@dataclass(frozen=True)
class IntegrationPath:
    """The straight line from the baselines to the inputs."""

    probe: Probe
    start: Tensor
    difference: Tensor  # input minus baseline

    def integrate(self, points: int, examples: Tensor) -> Tensor:
        """The scores of these examples from this number of points."""
        ones = (1,) * (self.start.dim() - 1)
        point_at, weight = (part.to(self.start).view(-1, *ones) for part in gauss_legendre(points))  # [point 1 1 ...]
        total = torch.zeros_like(self.start[: len(examples)])
        for row, point in self.rows(points, len(examples)):
            of = examples[row]
            _, gradient = self.probe.run_at_leaf(self.start[of] + point_at[point] * self.difference[of], of)
            assert gradient is not None
            weighted = gradient * weight[point]
            for example in row.unique().tolist():  # not index_add_, which is not deterministic on a GPU
                total[example] += weighted[row == example].sum(0)
        return (total * self.difference[examples]).sum(-1).double().cpu()

    def rows(self, points: int, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every point of every example, in chunks: (example, point)."""
        every = torch.arange(points * examples)
        with show_progress(len(every), "integrated gradients") as progress:
            for some in every.split(POINTS_PER_PASS):
                yield some // points, some % points
                progress.advance(len(some))


@cache
def gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Points in [0, 1], and weights that sum to 1."""
    point_at, weight = numpy.polynomial.legendre.leggauss(points)
    return torch.from_numpy((point_at + 1) / 2), torch.from_numpy(weight / 2)


def plan_step_counts(steps: int | None, most_steps: int) -> list[int]:
    """The numbers of points to try, in order."""
    if steps is not None:
        return [steps]
    counts = [min(FEWEST_STEPS, most_steps)]
    while counts[-1] < most_steps:
        counts.append(min(2 * counts[-1], most_steps))
    return counts
