r"""SaCo, the salience-guided faithfulness coefficient: do groups with higher salience change the answer more?

$$ F = \frac{\sum_{i<j} w_{ij}}{\sum_{i<j} |w_{ij}|}, \qquad
   w_{ij} = \begin{cases} s_i - s_j & \text{if } \Delta_i \ge \Delta_j \\ -(s_i - s_j) & \text{else} \end{cases} $$

The units are split into $K$ groups by decreasing salience; $s_i$ is the salience of group $i$ and $\Delta_i$ how much
the target's probability falls when that group alone is replaced by the image's mean. From -1 to 1. Wu et al., On the
Faithfulness of Vision Transformer Explanations, CVPR 2024. arXiv:2404.01415

Deviation: $s_i$ is the mean salience of a group, not the sum, so that groups whose sizes differ by one are comparable;
for groups of equal size it is the same, since F does not depend on the scale.
"""

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_whole_number
from whyformer.metrics._ordering import TieOrder
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    RemovableUnits,
    RemovalUnit,
    as_step_answers,
    ask_variants,
    choose_fill,
    find_removable_units,
    rank_for_removal,
)
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation


@metric(paper="Wu et al., CVPR 2024", better="higher", kind="faithfulness")
@check_metric_settings(groups=allow_whole_number(2, 10_000))
def saco(
    explanation: Explanation,
    probe: Probe,
    *,
    groups: int = 10,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """How well the salience of groups of pixels (or tokens) predicts how much each group changes the answer.

    groups: the number of groups.
    per: "pixel" or "patch" for images; texts lose tokens.
    fill: by default the mean colour for images, the probe's fill for texts.
    ties: the order of equal scores, "random" or the "first" in the input first.

    curve: how much the target's probability falls without each group, the most salient first.

    Higher is better. Control: a random map gets about 0, the inverted map less. Undefined if the map is constant.
    """
    units = find_removable_units(explanation, probe, per=per)
    members = split_into_groups(units, rank_for_removal(units, probe, seed=seed, ties=ties), groups)
    fill = choose_fill(probe, fill, image="mean")
    after = ask_variants(probe, ~members, units.shape, fill=fill, seed=seed).probability
    change = as_step_answers(probe.before, probe.batch).probability - after
    size = members.sum(-1)
    salience = (members * units.scores[:, None]).sum(-1) / size
    values = [faithfulness_coefficient(s[n > 0], c[n > 0]) for s, c, n in zip(salience, change, size, strict=True)]
    return Measurement(torch.tensor(values, dtype=torch.float64), change, tuple(float(k) for k in range(groups)))


def split_into_groups(units: RemovableUnits, rank: Tensor, groups: int) -> Tensor:
    """[batch group unit] bool: groups of equal size (the first ones may have one more), the most salient first."""
    counts = torch.tensor(units.counts)[:, None]
    number = torch.arange(groups + 1)
    edges = number * (counts // groups) + torch.minimum(number, counts % groups)  # [batch group + 1]
    first, last = edges[:, :-1, None], edges[:, 1:, None]
    return (rank[:, None] >= first) & (rank[:, None] < last) & units.real[:, None]


def faithfulness_coefficient(salience: Tensor, change: Tensor) -> float:
    """F of groups in order of decreasing salience."""
    first, second = torch.triu_indices(len(salience), len(salience), offset=1)
    weight = salience[first] - salience[second]
    signed = torch.where(change[first] >= change[second], weight, -weight)
    total = float(weight.abs().sum())
    return float(signed.sum()) / total if total > 0 else float("nan")
