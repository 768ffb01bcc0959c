r"""Fragmentation: into how many parts does a map fall, and how far apart do they lie?

$$ S = \text{the highest patches that together hold } 80\,\% \text{ of } \textstyle\sum_p m^+_p, \qquad
   \text{fragments} = |\text{parts}(S)|, \qquad
   \text{spread} = \frac{\sqrt{\sum_{p \in S} m^+_p \, \lVert x_p - \bar x \rVert^2 / \sum_{p \in S} m^+_p}}
                        {\sqrt{(h^2 - 1)/12 + (w^2 - 1)/12}} $$

Two patches belong to one part if they share a side or a corner; $x_p$ is the row and column of a patch, $\bar x$ the
mean of $S$ weighted by $m^+$, and the divisor is the spread of an even map of $h \times w$ patches.

Chefer, Gur & Wolf, CVPR 2021 (arXiv:2012.09838) call the maps of other methods fragmented and do not measure it; the
measure is ours. A patch with the same value as the last one of $S$ belongs to $S$ as well.
"""

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_number
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError
from whyformer.metrics._registry import MetricFacts, metric
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")
FORM: MetricFacts = {"better": "lower", "kind": "form", "only": "images"}
PAPER = "after Chefer, Gur & Wolf, CVPR 2021"
hold = check_metric_settings(holds=allow_number("above 0 and at most 1", most=1, above=0))


@metric(paper=PAPER, **FORM)
@hold
def fragments(explanation: Explanation, *, holds: float = 0.8) -> Tensor:
    """How many connected parts the patches have that hold 80 % of the map's positive mass.

    holds: the share of the mass.

    Control: one bright patch anywhere gets 1, a random map of n patches about n / 9. It says nothing about being right.
    Undefined without positive mass.
    """
    return torch.tensor(
        [count_parts(kept) if kept.any() else NAN for _, kept in keep_highest(explanation, holds)]
    ).double()


@metric(paper=PAPER, **FORM)
@hold
def fragment_spread(explanation: Explanation, *, holds: float = 0.8) -> Tensor:
    """How far apart the patches lie that hold 80 % of the map's positive mass: 1 if as far as in an even map.

    holds: the share of the mass.

    Control: one bright patch anywhere gets 0, a random map about 1. It says nothing about being right. Undefined
    without positive mass.
    """
    return torch.tensor([measure_spread(mass * kept) for mass, kept in keep_highest(explanation, holds)]).double()


def keep_highest(explanation: Explanation, holds: float) -> list[tuple[Tensor, Tensor]]:
    """Of every image its positive mass, and which patches are the highest that hold this share of it: [row column]."""
    found = []
    for i, tokens in enumerate(explanation.tokens):
        if not isinstance(tokens, Grid):
            raise InputError("A text has no map of patches, so it has no fragments.")
        mass = explanation.map(i).double().clamp(min=0)
        mass = mass / mass.max() if mass.max() > 0 else mass
        falling = mass.flatten().sort(descending=True).values
        enough = int((falling.cumsum(0) < holds * falling.sum()).sum())  # the index of the patch that completes S
        found.append((mass, (mass >= falling[min(enough, len(falling) - 1)]) & (mass > 0)))
    return found


def count_parts(kept: Tensor) -> int:
    """The number of connected parts; patches that share a side or a corner are connected."""
    left = {(int(row), int(column)) for row, column in kept.nonzero()}
    parts = 0
    while left:
        parts += 1
        edge = [left.pop()]
        while edge:
            row, column = edge.pop()
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            edge += near
    return parts


def measure_spread(mass: Tensor) -> float:
    """The root mean square distance from the centre of the mass, over that of an even map of this size."""
    total = float(mass.sum())
    if total == 0:
        return NAN
    variance = even = 0.0
    for size, along in zip(mass.shape, (mass.sum(1), mass.sum(0)), strict=True):
        at = torch.arange(size, dtype=torch.float64)
        centre = float((at * along).sum()) / total
        variance += float(((at - centre) ** 2 * along).sum()) / total
        even += (size**2 - 1) / 12
    return float((variance / even) ** 0.5) if even else NAN
