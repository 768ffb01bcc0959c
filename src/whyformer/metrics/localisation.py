r"""Localisation without a threshold: does the map point at the object that a person outlined?

$$ \text{mass} = \frac{\sum_{p \in \text{object}} m^+_p}{\sum_p m^+_p} \qquad
   \text{rank} = \frac{|\text{top}_K(m) \cap \text{object}|}{K}, \; K = |\text{object}| $$

Mass and rank accuracy: Arras, Osman & Samek, CLEVR-XAI: A benchmark dataset for the ground truth evaluation of neural
network explanations, Information Fusion 2022. arXiv:2003.07258. Pointing game: Zhang et al., Top-down Neural Attention
by Excitation Backprop, ECCV 2016. arXiv:1608.00507

Pixels marked -1 are ignored. A map of patches is enlarged to the size of the mask (bilinear).
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._plain.setting_checks import allow_whole_number
from whyformer.metrics._maps import OUTLINED, MaskLike, check_object_masks, resize_map
from whyformer.metrics._registry import metric
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(paper="Arras et al., Information Fusion 2022", **OUTLINED)
def mass_in_mask(explanation: Explanation, mask: Sequence[MaskLike]) -> Tensor:
    """How much of the map's positive mass lies on the object.

    Control: a random map gets the object's share of the image, not 0. Undefined without positive mass or object.
    """
    return score_each_image(explanation, mask, mass_inside)


def mass_inside(values: Tensor, truth: Tensor) -> float:
    positive = values.clamp(min=0)
    total = float(positive[truth >= 0].sum())
    return float(positive[truth == 1].sum()) / total if total > 0 and bool((truth == 1).any()) else NAN


@metric(paper="Arras et al., Information Fusion 2022", **OUTLINED)
def rank_in_mask(explanation: Explanation, mask: Sequence[MaskLike]) -> Tensor:
    """How many of the K highest pixels lie on the object, where K is the number of pixels of the object.

    Ties count by the share of them on the object. Control: a random map gets the object's share of the image. Undefined
    without an object.
    """
    return score_each_image(explanation, mask, rank_inside)


def rank_inside(values: Tensor, truth: Tensor) -> float:
    labelled = truth >= 0
    scores, real = values[labelled], truth[labelled] == 1
    count = int(real.sum())
    if not count:
        return NAN
    cut = scores.sort(descending=True).values[count - 1]
    over, level = scores > cut, scores == cut
    hits = float((over & real).sum()) + (count - int(over.sum())) * float((level & real).sum()) / float(level.sum())
    return hits / count


@metric(paper="Zhang et al., ECCV 2016", **OUTLINED)
@check_metric_settings(tolerance=allow_whole_number(0))
def pointing_game(explanation: Explanation, mask: Sequence[MaskLike], *, tolerance: int = 0) -> Tensor:
    """Whether the highest pixel of the map lies on the object: 1 or 0.

    tolerance: how many pixels outside the object still count (15 in the paper).

    If several pixels are highest, their share on the object counts. Control: a random map hits with the object's share
    of the image. Undefined without an object.
    """

    def hits(values: Tensor, truth: Tensor) -> float:
        real = truth == 1
        if not bool(real.any()):
            return NAN
        reach = min(tolerance, max(real.shape))
        near = F.max_pool2d(real.double()[None, None], 2 * reach + 1, 1, reach)[0, 0] > 0
        seen = values.masked_fill(truth < 0, float("-inf"))
        highest = seen == seen.max()
        return float((highest & near).sum()) / float(highest.sum())

    return score_each_image(explanation, mask, hits)


def score_each_image(
    explanation: Explanation, mask: Sequence[MaskLike], value: Callable[[Tensor, Tensor], float]
) -> Tensor:
    """value(map, mask) of every image, the map at the size of the mask."""
    found = [
        value(resize_map(explanation, i, truth.shape), truth)
        for i, truth in enumerate(check_object_masks(explanation, mask))
    ]
    return torch.tensor(found, dtype=torch.float64)
