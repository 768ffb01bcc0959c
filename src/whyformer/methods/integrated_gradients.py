r"""Integrated gradients.

$$ s_j = \sum_c (x_{jc} - b_{jc}) \int_0^1 \frac{\partial y}{\partial x_{jc}}\bigl(b + \alpha (x - b)\bigr)\,d\alpha,
   \qquad \sum_j s_j = y(x) - y(b) $$

from a baseline $b$, where there is nothing to see, to the input $x$.
Sundararajan, Taly & Yan, Axiomatic Attribution for Deep Networks, ICML 2017, eq. 1 to 3. arXiv:1703.01365

The paper approximates the integral by a Riemann sum of 20 to 300 steps and advises to check the right-hand equation
(completeness). We take Gauss-Legendre points, which are exact for polynomials of twice their number, and double the
number until the equation holds to `tolerance`, for each example by itself. How far it holds is always reported:
`details["completeness_error"]` is $|\sum_j s_j - (y(x) - y(b))|$, beside `difference`, $y(x) - y(b)$, and `steps`.

For a text, $x$ is what enters the first block and the baseline "zero" takes the words out and leaves positions and
special tokens; "mask", "pad" and "unknown" put that token in place of each word. For a picture, "zero" is 0 after
normalisation; "black", "mean" (its mean colour), "blur" and "noise" are the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.progress import show_progress
from whyformer.errors import MethodError
from whyformer.methods._registry import Scores, method

POINTS_PER_PASS = 64  # points asked about at once
FEWEST_STEPS = 8


@method(
    paper="Sundararajan et al., ICML 2017",
    class_specific=True,
    signed=True,
    cost="a forward and a backward for each of 8 to 2 x `most_steps` points",
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
    """How much each token or pixel adds to the explained output on the straight way from a baseline; signed.

    baseline: "zero", or what stands for nothing: "mask", "pad", "unknown"; "black", "mean", "blur", "noise".
    steps: this number of points; without it, 8 and twice as many again until the scores add up.
    tolerance: how far they may be from adding up, as a share of what is to be explained.
    seed: of the baseline "noise".
    """
    plan = plan_step_counts(steps, most_steps)
    if not tolerance > 0:
        raise MethodError(f"tolerance={tolerance!r} cannot be met. Give a share above 0, such as 0.01.")
    start = probe.baseline(baseline, seed=seed)
    way = IntegrationPath(probe, start, probe.leaf - start)
    ends = (
        probe.run_at_leaf(torch.cat([start, probe.leaf]), repeat_rows_twice(probe.batch), gradient=False)[0]
        .score.double()
        .cpu()
    )
    difference = ends[probe.batch :] - ends[: probe.batch]
    scores = torch.zeros(start.shape[:-1], dtype=torch.float64)
    error = torch.full((probe.batch,), torch.inf, dtype=torch.float64)
    taken = torch.zeros(probe.batch, dtype=torch.long)
    for points in plan:
        left = (error > tolerance * difference.abs()).nonzero()[:, 0]
        if not len(left):
            break
        scores[left] = way.integrate(points, left)
        error[left] = (scores[left].flatten(1).sum(1) - difference[left]).abs()
        taken[left] = points
    return Scores(scores, {"completeness_error": error, "difference": difference, "steps": taken.double()})


@dataclass(frozen=True)
class IntegrationPath:
    """The straight line from the baselines to the inputs."""

    probe: Probe
    start: Tensor
    difference: Tensor  # the input less the baseline

    def integrate(self, points: int, examples: Tensor) -> Tensor:
        """The scores of these examples from so many points."""
        place, weight = (broadcast_to_leaf(part, self.start) for part in gauss_legendre(points))
        total = torch.zeros_like(self.start[: len(examples)])
        for row, point in self.rows(points, len(examples)):
            of = examples[row]
            _, gradient = self.probe.run_at_leaf(self.start[of] + place[point] * self.difference[of], of)
            assert gradient is not None
            weighted = gradient * weight[point]
            for one in row.unique().tolist():  # not index_add_, which on a GPU adds in any order
                total[one] += weighted[row == one].sum(0)
        return (total * self.difference[examples]).sum(-1).double().cpu()

    def rows(self, points: int, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Every point of every example, some at a time."""
        every = torch.arange(points * examples)
        with show_progress(len(every), "integrated gradients") as progress:
            for some in every.split(POINTS_PER_PASS):
                yield some // points, some % points
                progress.advance(len(some))


@cache
def gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Places between 0 and 1, and weights that sum to 1."""
    place, weight = numpy.polynomial.legendre.leggauss(points)
    return torch.from_numpy((place + 1) / 2), torch.from_numpy(weight / 2)


def broadcast_to_leaf(values: Tensor, like: Tensor) -> Tensor:
    """[point 1 1 ...], to be multiplied with leaves."""
    return values.to(like).view(-1, *(1,) * (like.dim() - 1))


def plan_step_counts(steps: Any, most_steps: Any) -> list[int]:
    """How many points to try with, one after the other."""
    for name, value in (("steps", steps), ("most_steps", most_steps)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise MethodError(f"{name}={value!r} is not a number of points. Give a whole number from 1 upwards.")
    if steps is not None:
        return [steps]
    found = [min(FEWEST_STEPS, most_steps)]
    while found[-1] < most_steps:
        found.append(min(2 * found[-1], most_steps))
    return found


def repeat_rows_twice(batch: int) -> Tensor:
    return torch.arange(batch).repeat(2)
