r"""Segmentation: a thresholded map compared with the outline that a person drew.

$$ \text{accuracy} = \frac{\sum_i \text{right}_i}{\sum_i \text{labelled}_i} \qquad
   \text{mIoU} = \frac{1}{2} \sum_{c \in \{0, 1\}} \frac{\sum_i |P_i^c \cap T_i^c|}{\sum_i |P_i^c \cup T_i^c|} \qquad
   F_1 = \frac{1}{n} \sum_i \frac{2\,|P_i^1 \cap T_i^1|}{|P_i^1| + |T_i^1|} $$

the first two summed over the images $i$ of the data set, with $P$ the map above its threshold and $T$ the mask. mAP is
the mean over images of the average precision of (1 - map, map) for (background, object). Chefer, Gur & Wolf,
Transformer Interpretability Beyond Attention Visualization, CVPR 2021, on ImageNet-Segmentation (Guillaumin, Küttel &
Ferrari, IJCV 2014). arXiv:2012.09838

As in the paper: maps are enlarged (bilinear) and scaled to [0, 1], pixels above the map's own mean are the object,
pixels marked -1 are ignored. `threshold="otsu"` is Otsu's method with 256 bins. A constant map is all background, as in
the authors' code. The value of an example is computed from that image alone; the value of a data set is combined from
`parts` and is not the mean of these.

F1 is not in the paper; the authors' evaluation prints it as "mF1", but takes the F1 of every row of pixels and averages
rows, with 0 for a row without the object. That is `preset="released"`; it can be far from the F1 of the image.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from whyformer._plain.environment import keep_environment
from whyformer._plain.setting_checks import allow_choice, allow_either, allow_share
from whyformer.metrics._maps import OUTLINED, MaskLike, check_object_masks, resize_map
from whyformer.metrics._registry import Measurement, PartsCombiner, metric
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

NAN = float("nan")
Threshold = Literal["mean", "otsu"]
PER = ("image", "row")
allow_threshold = allow_either(get_args(Threshold), allow_share, "'mean', 'otsu' or a number from 0 to 1")


def combine_accuracy(parts: Tensor) -> float:
    right, labelled = parts.sum(0).tolist()
    return right / labelled if labelled else NAN


def combine_iou(parts: Tensor) -> float:
    """The mean over background and object of summed intersections over summed unions."""
    sums = parts.sum(0).reshape(2, 2)
    there = sums[:, 1] > 0
    return float((sums[there, 0] / sums[there, 1]).mean()) if bool(there.any()) else NAN


@metric(paper="Chefer et al., CVPR 2021", **OUTLINED, combine=combine_accuracy)
@check_metric_settings(threshold=allow_threshold)
def pixel_accuracy(
    explanation: Explanation, mask: Sequence[MaskLike], *, threshold: Threshold | float = "mean"
) -> Measurement:
    """The share of pixels classified correctly as object or background, with the map above its threshold as the object.

    threshold: "mean", "otsu", or a number from 0 to 1.

    Control: a random map gets about one half with the mean as threshold. Undefined without a labelled pixel.
    """
    parts = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        labelled = truth >= 0
        right = (threshold_map(values, threshold) == (truth == 1)) & labelled
        parts.append([float(right.sum()), float(labelled.sum())])
    return measure_parts(parts, combine_accuracy)


@metric(paper="Chefer et al., CVPR 2021", **OUTLINED, combine=combine_iou)
@check_metric_settings(threshold=allow_threshold)
def mean_iou(
    explanation: Explanation, mask: Sequence[MaskLike], *, threshold: Threshold | float = "mean"
) -> Measurement:
    """Intersection over union of the map above its threshold with the object, averaged over object and background.

    threshold: "mean", "otsu", or a number from 0 to 1.

    Control: a random map gets about one third for an object that covers half of the image.
    """
    parts = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        found = threshold_map(values, threshold)
        row: list[float] = []
        for category in (0, 1):
            guess, real = (found == bool(category)) & (truth >= 0), truth == category
            row += [float((guess & real).sum()), float((guess | real).sum())]
        parts.append(row)
    return measure_parts(parts, combine_iou)


@metric(paper="Chefer et al., CVPR 2021", **OUTLINED)
@keep_environment()
def mean_average_precision(explanation: Explanation, mask: Sequence[MaskLike]) -> Measurement:
    """How well the map ranks object above background, without a threshold: average precision of both classes together.

    Control: a random map gets about one half. Undefined without a labelled pixel.
    """
    from sklearn.metrics import average_precision_score

    found = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        labelled = truth >= 0
        scores, real = values[labelled], truth[labelled] == 1
        both, wanted = torch.cat([1 - scores, scores]), torch.cat([~real, real])
        found.append(float(average_precision_score(wanted.numpy(), both.numpy())) if len(scores) else NAN)
    return Measurement(torch.tensor(found, dtype=torch.float64))


@metric(paper="Chefer et al., CVPR 2021", **OUTLINED, presets={"released": {"per": "row"}})
@check_metric_settings(threshold=allow_threshold, per=allow_choice(PER))
def mean_f1(
    explanation: Explanation, mask: Sequence[MaskLike], *, threshold: Threshold | float = "mean", per: str = "image"
) -> Measurement:
    """Overlap of the map above its threshold with the object: F1, the harmonic mean of precision and recall.

    threshold: "mean", "otsu", or a number from 0 to 1.
    per: "image", or "row" for the mean over rows of pixels, which is what the released code computes.

    Control: a random map gets about 2 s / (2 s + 1) for an object that covers the share s of the image. Undefined
    without a labelled pixel.
    """
    found = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        guess, real = threshold_map(values, threshold) & (truth >= 0), truth == 1
        labelled = bool((truth >= 0).any())
        found.append(float(compute_f1(guess, real, per).mean()) if labelled else NAN)
    return Measurement(torch.tensor(found, dtype=torch.float64))


def compute_f1(guess: Tensor, real: Tensor, per: str) -> Tensor:
    """F1 of the whole image, or of every row; 0 where neither has the object."""
    along = (0, 1) if per == "image" else (1,)
    hits, both = 2 * (guess & real).sum(along).double(), (guess.sum(along) + real.sum(along)).double()
    return hits / both.clamp(min=1)


def measure_parts(parts: list[list[float]], combine: PartsCombiner) -> Measurement:
    rows = torch.tensor(parts, dtype=torch.float64)
    return Measurement(torch.tensor([combine(row[None]) for row in rows], dtype=torch.float64), parts=rows)


# --- maps and masks ---------------------------------------------------------------------------------------------------


def pair_maps_with_masks(explanation: Explanation, mask: Sequence[MaskLike]) -> list[tuple[Tensor, Tensor]]:
    """For every image: the map scaled to [0, 1] at the size of its mask, and the mask."""
    found = check_object_masks(explanation, mask)
    return [(scale_to_unit_range(resize_map(explanation, i, truth.shape)), truth) for i, truth in enumerate(found)]


def scale_to_unit_range(values: Tensor) -> Tensor:
    """Scaled to [0, 1]; all 0 if constant."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def threshold_map(values: Tensor, threshold: Threshold | float) -> Tensor:
    """True for the pixels taken as the object."""
    if threshold == "mean":
        return values > values.mean()
    if threshold == "otsu":
        return values > otsu_threshold(values)
    return values > threshold


def otsu_threshold(values: Tensor, bins: int = 256) -> float:
    """The threshold that maximises the variance between the values below and above it."""
    counts = torch.histc(values.double(), bins=bins, min=0.0, max=1.0)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below = counts.cumsum(0)
    mass = (counts * centres).cumsum(0)
    over, rest = below[-1] - below, mass[-1] - mass
    between = below * over * (mass / below.clamp(min=1) - rest / over.clamp(min=1)) ** 2
    return float(int(between[:-1].argmax()) + 1) / bins  # the upper edge of the last bin below
