r"""Segmentation: a map as a rough outline of the object, held against the outline a person drew.

$$ \text{accuracy} = \frac{\sum_i \text{right}_i}{\sum_i \text{labelled}_i} \qquad
   \text{mIoU} = \frac{1}{2} \sum_{c \in \{0, 1\}} \frac{\sum_i |P_i^c \cap T_i^c|}{\sum_i |P_i^c \cup T_i^c|} $$

summed over the pictures $i$ of the data set, $P$ the map above its threshold, $T$ the mask. mAP is the mean over
pictures of the average precision of (1 - map, map) for (background, object). Chefer, Gur & Wolf, Transformer
Interpretability Beyond Attention Visualization, CVPR 2021, on ImageNet-Segmentation (Guillaumin, Küttel & Ferrari,
IJCV 2014). arXiv:2012.09838

As there: maps are enlarged (bilinear) and scaled to 0..1, the object is what lies above the map's own mean, pixels
marked -1 are left out. `threshold="otsu"` is Otsu's, of 256 bins. A map that is the same everywhere is all
background, as the authors' code has it. The value of one example is the same figure of that picture alone; the figure
of a data set is made from `parts`, and is not the mean of the values.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from whyformer.errors import InputError, MetricError
from whyformer.metrics._ordering import resize_map
from whyformer.metrics._registry import Measurement, metric
from whyformer.results.explanation import Explanation

NAN = float("nan")
Threshold = Literal["mean", "otsu"]


def combine_accuracy(parts: Tensor) -> float:
    right, labelled = parts.sum(0).tolist()
    return right / labelled if labelled else NAN


def combine_iou(parts: Tensor) -> float:
    """The mean over background and object of summed intersections over summed unions."""
    sums = parts.sum(0).reshape(2, 2)
    there = sums[:, 1] > 0
    return float((sums[there, 0] / sums[there, 1]).mean()) if bool(there.any()) else NAN


@metric(
    paper="Chefer et al., CVPR 2021",
    better="higher",
    kind="localisation",
    needs_truth="mask",
    only="images",
    combine=combine_accuracy,
)
def pixel_accuracy(
    explanation: Explanation, mask: Sequence[Any], *, threshold: Threshold | float = "mean"
) -> Measurement:
    """The share of pixels on the right side of the outline, taking the map above its threshold as the object.

    Control: a random map, about one half with the mean as threshold. Undefined without a labelled pixel.
    """
    parts = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        labelled = truth >= 0
        right = (threshold_map(values, threshold) == (truth == 1)) & labelled
        parts.append([float(right.sum()), float(labelled.sum())])
    return measure_parts(parts, combine_accuracy)


@metric(
    paper="Chefer et al., CVPR 2021",
    better="higher",
    kind="localisation",
    needs_truth="mask",
    only="images",
    combine=combine_iou,
)
def mean_iou(explanation: Explanation, mask: Sequence[Any], *, threshold: Threshold | float = "mean") -> Measurement:
    """How well the map above its threshold covers the object and nothing else: intersection over union.

    The mean over object and background. Control: a random map, about one third for an object of half the picture.
    """
    parts = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        found = threshold_map(values, threshold)
        row: list[float] = []
        for one in (0, 1):
            guess, real = (found == bool(one)) & (truth >= 0), truth == one
            row += [float((guess & real).sum()), float((guess | real).sum())]
        parts.append(row)
    return measure_parts(parts, combine_iou)


@metric(paper="Chefer et al., CVPR 2021", better="higher", kind="localisation", needs_truth="mask", only="images")
def mean_average_precision(explanation: Explanation, mask: Sequence[Any]) -> Measurement:
    """How well the map ranks object before background, without a threshold: average precision of both as one list.

    Control: a random map, about one half. Undefined without a labelled pixel.
    """
    from sklearn.metrics import average_precision_score

    found = []
    for values, truth in pair_maps_with_masks(explanation, mask):
        labelled = truth >= 0
        scores, real = values[labelled], truth[labelled] == 1
        both, wanted = torch.cat([1 - scores, scores]), torch.cat([~real, real])
        found.append(float(average_precision_score(wanted.numpy(), both.numpy())) if len(scores) else NAN)
    return Measurement(torch.tensor(found, dtype=torch.float64))


def measure_parts(parts: list[list[float]], combine: Any) -> Measurement:
    held = torch.tensor(parts, dtype=torch.float64)
    return Measurement(torch.tensor([combine(row[None]) for row in held], dtype=torch.float64), parts=held)


# --- maps and masks ---------------------------------------------------------------------------------------------------


def pair_maps_with_masks(explanation: Explanation, mask: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """For every picture: the map scaled to 0..1 at the size of its mask, and the mask."""
    found = check_object_masks(explanation, mask)
    return [(scale_to_unit_range(resize_map(explanation, i, truth.shape)), truth) for i, truth in enumerate(found)]


def check_object_masks(explanation: Explanation, mask: Sequence[Any]) -> list[Tensor]:
    """[height width] of 1, 0 and -1 for every example."""
    if len(mask) != len(explanation):
        raise InputError(f"{len(mask)} masks for {len(explanation)} pictures. Give one a picture.")
    found = [torch.as_tensor(one).cpu().long() for one in mask]
    for one in found:
        if one.dim() != 2 or bool(((one != 1) & (one != 0) & (one != -1)).any()):
            raise InputError(
                "A mask is [height width] of 1 (object), 0 (background) and -1 (ignored); this one is "
                f"{list(one.shape)} with values {one.unique().tolist()[:6]}."
            )
    return found


def scale_to_unit_range(values: Tensor) -> Tensor:
    """Scaled to 0..1; all 0 where nothing differs."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def threshold_map(values: Tensor, threshold: Threshold | float) -> Tensor:
    """The pixels taken for the object."""
    if threshold == "mean":
        return values > values.mean()
    if threshold == "otsu":
        return values > otsu_threshold(values)
    if isinstance(threshold, int | float):
        return values > threshold
    raise MetricError(f"threshold={threshold!r} is not there. There are: 'mean', 'otsu', or a number from 0 to 1.")


def otsu_threshold(values: Tensor, bins: int = 256) -> float:
    """The threshold with the most variance between what lies below and above it."""
    counts = torch.histc(values.double(), bins=bins, min=0.0, max=1.0)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below = counts.cumsum(0)
    mass = (counts * centres).cumsum(0)
    over, rest = below[-1] - below, mass[-1] - mass
    between = below * over * (mass / below.clamp(min=1) - rest / over.clamp(min=1)) ** 2
    return float(int(between[:-1].argmax()) + 1) / bins  # the upper edge of the last bin below
