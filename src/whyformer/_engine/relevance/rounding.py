r"""How much rounding can move relevance: an estimate that is carried along with every relevance pass.

$\rho$ is the expected error of the relevance that has arrived so far, relative to it: the sum of |error| over the sum
of |R|, one number per example. It starts at $\delta$, the relative rounding error of the forward pass. Where a rule
divides by a computed sum z, z is wrong by about $\delta \bar z$, with $\bar z$ the mean of |z| over the last axis. That
adds

$$ s = \frac{\sum |R'|\,q}{\sum |R'|}, \qquad
   q = \frac{\delta \bar z\,|z|}{z^2 + (\delta \bar z)^2}, \qquad \delta = 8\,\epsilon_{\text{machine}} $$

where R' is the relevance that is shared in proportion to 1/z: large where the summands cancel. For z = u + v,
$6\,\epsilon\,(\overline{|u|} + \overline{|v|})$ takes the place of $\delta \bar z$. The normalised addition also gives
each branch b the sign of its total $T_b = \sum R'_b$. A total is wrong by about
$d = \sum |R'|\,q + \rho \min(\sum |R'_u|, \sum |R'_v|)$; if that is as much as the total, its sign is undetermined:

$$ s \leftarrow s + \sum_{b \in u, v} \frac{d^2}{T_b^2 + d^2} \cdot \frac{\sum |R'_b|}{\sum |R'_u| + \sum |R'_v|} $$

The errors of the steps are independent, and an error is part of the relevance to which it is compared from there on:
$\rho \leftarrow x / \sqrt{1 + x^2}$ with $x^2 = \rho^2 + s^2$.

The factor 8 was measured on `demo/pets`: the float32 error of a hidden state has the same standard deviation for all
entries of a token, 8 to 9 times $\epsilon \bar z$. Rules that pass slopes divide by nothing that cancels, and $\rho$
stays at $\delta$. How well the estimate predicts true errors: `benchmarks/conditioning.py`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from whyformer._engine.tracing.provenance import SampleGroups

FORWARD_ERROR = 8  # error of a sum, in units of machine epsilon times the mean size of such sums
ADDEND_ERROR = 6  # error of u + v, in units of machine epsilon times the mean size of u and that of v


@dataclass
class RoundingError:
    """The estimate during one relevance pass. Nothing is read from the device before the pass has ended."""

    error: Tensor | None = None  # [batch], relative to the relevance that has arrived so far
    mass: Tensor | None = None  # [batch]: the sum of |relevance| at the last addition
    at_attention: list[Tensor | None] = field(default_factory=list)  # `error` at each attention, the last layer first

    def note_division(self, shared: Tensor, z: Tensor, epsilon: float, samples: SampleGroups) -> None:
        """`shared` was divided by z, which the stabiliser moved away from zero by epsilon."""
        off = mean_size(z).mul_(FORWARD_ERROR * torch.finfo(z.dtype).eps)
        wrong = samples.sum_magnitudes(shared * share_wrong(z, off, epsilon))
        self.add_division(samples.sum_magnitudes(shared), wrong)

    def add_division(self, mass: Tensor, wrong: Tensor) -> None:
        """Add the error of a division of relevance `mass`, of which `wrong` may be wrong."""
        whole = mass if self.mass is None else torch.maximum(mass, self.mass)
        self.grow(divide_or_zero(wrong, whole))

    def note_addition(
        self,
        shares: tuple[Tensor, Tensor],
        addends: tuple[Tensor, Tensor],
        z: Tensor,
        samples: SampleGroups,
        totals: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """u R / z and v R / z were computed. `totals` are their sums, if each branch takes the sign of its own."""
        to_u, to_v = shares
        off = (mean_size(addends[0]) + mean_size(addends[1])).mul_(ADDEND_ERROR * torch.finfo(z.dtype).eps)
        mass_u, mass_v = samples.sum_magnitudes(to_u), samples.sum_magnitudes(to_v)
        whole = mass_u + mass_v
        wrong = samples.sum_magnitudes(to_u * share_wrong(z, off))  # v R / z is wrong by as much where u + v cancels
        step = divide_or_zero(2 * wrong, whole)
        if totals is not None:
            error = self.start(wrong) if self.error is None else self.error
            off = wrong + error * torch.minimum(mass_u, mass_v)
            for total, mass in zip(totals, (mass_u, mass_v), strict=True):
                step = step + divide_or_zero(off.square(), total.square() + off.square()) * divide_or_zero(mass, whole)
        self.mass = whole
        self.grow(step)

    def note_attention(self) -> None:
        """Relevance has arrived at the output of an attention."""
        self.at_attention.append(self.error)

    def join(self, other: "RoundingError") -> "RoundingError":
        """The estimate for the difference of two passes: the errors add up."""
        pairs = zip(self.at_attention, other.at_attention, strict=False)
        return RoundingError(
            add_errors(self.error, other.error), None, [add_errors(own, against) for own, against in pairs]
        )

    def grow(self, step: Tensor) -> None:
        """Add the error of one step."""
        error = torch.hypot(self.start(step) if self.error is None else self.error, step)
        self.error = error / torch.hypot(error, torch.ones_like(error))

    @staticmethod
    def start(like: Tensor) -> Tensor:
        """The error of what the forward pass computed."""
        return torch.full_like(like, FORWARD_ERROR * torch.finfo(like.dtype).eps)


class TileRounding(RoundingError):
    """The same for one operation that is computed in tiles: what the tiles divided is added up first."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: tuple[Tensor, Tensor] | None = None

    def add_division(self, mass: Tensor, wrong: Tensor) -> None:
        self.sums = (mass, wrong) if self.sums is None else (self.sums[0] + mass, self.sums[1] + wrong)

    def add_to(self, whole: RoundingError) -> None:
        """Add what all tiles of an attention divided, as if it had been whole."""
        whole.note_attention()
        if self.sums is not None:
            whole.add_division(*self.sums)


def share_wrong(z: Tensor, off: Tensor, epsilon: float = 0.0) -> Tensor:
    """q: the expected relative error of 1 / z, at most 1/2, where z is wrong by `off`."""
    size = z.abs()
    size = size.add_(epsilon) if epsilon else size
    below = (size * size).add_(off * off).clamp_min_(torch.finfo(z.dtype).tiny)
    return size.mul_(off).div_(below)


def mean_size(z: Tensor) -> Tensor:
    """The mean of |z| over the last axis, which is kept. A mask that is added may be of whole numbers."""
    z = z if z.is_floating_point() else z.float()
    return torch.linalg.vector_norm(z, 1, -1, keepdim=True).div_(z.size(-1)) if z.dim() else z.abs()


def add_errors(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def divide_or_zero(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)
