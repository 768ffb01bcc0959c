r"""Localisation: does a map point at the object that a person outlined?

$$ \text{mass} = \frac{\sum_{p \in \text{object}} m^+_p}{\sum_p m^+_p} $$

Relevance mass accuracy and relevance rank accuracy: Arras, Osman & Samek, CLEVR-XAI: A benchmark dataset for the
ground truth evaluation of neural network explanations, Information Fusion 2022. arXiv:2003.07258

Pixels marked -1 take no part. A map of patches is enlarged to the size of the mask (bilinear), which is how the maps of
Chefer, Gur & Wolf, CVPR 2021 meet their masks.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.errors import InputError
from whyformer.explanation import Explanation
from whyformer.metric import metric
from whyformer.tokens import Grid

NAN = float("nan")


@metric(
    paper="Arras et al., Information Fusion 2022",
    better="higher",
    kind="localisation",
    needs_truth="mask",
    only="pictures",
)
def mass_in_mask(explanation: Explanation, mask: Sequence[Any]) -> Tensor:
    """How much of the map's positive mass lies on the object.

    Control: a random map gets the object's share of the picture, not 0. Undefined without positive mass or object.
    """
    return per_example(explanation, mask, mass_inside)


def mass_inside(values: Tensor, truth: Tensor) -> float:
    positive = values.clamp(min=0)
    total = float(positive[truth >= 0].sum())
    return float(positive[truth == 1].sum()) / total if total > 0 and bool((truth == 1).any()) else NAN


# --- maps and masks ---------------------------------------------------------------------------------------------------


def per_example(explanation: Explanation, mask: Sequence[Any], value: Any) -> Tensor:
    """value(map, mask) of every example, in float64."""
    pairs = zip(maps_on(explanation, mask), masks(explanation, mask), strict=True)
    return torch.tensor([value(one, truth) for one, truth in pairs], dtype=torch.float64)


def masks(explanation: Explanation, mask: Sequence[Any]) -> list[Tensor]:
    """[height width] of 1, 0 and -1 for every example."""
    if len(mask) != len(explanation):
        raise InputError(f"{len(mask)} masks for {len(explanation)} pictures. Give one a picture.")
    found = [torch.as_tensor(one).long() for one in mask]
    for one in found:
        if one.dim() != 2 or bool(((one != 1) & (one != 0) & (one != -1)).any()):
            raise InputError(
                f"A mask is [height width] of 1 (object), 0 (background) and -1 (ignored); this one is "
                f"{list(one.shape)} with values {one.unique().tolist()[:6]}."
            )
    return found


def maps_on(explanation: Explanation, mask: Sequence[Any]) -> list[Tensor]:
    """The map of every picture in float64 at the size of its mask."""
    return [map_at(explanation, i, tuple(one.shape)) for i, one in enumerate(masks(explanation, mask))]


def map_at(explanation: Explanation, example: int, size: tuple[int, ...]) -> Tensor:
    """One map at a size: the pixels' own where they have it, else the patches enlarged (bilinear)."""
    grid = explanation.tokens[example]
    if not isinstance(grid, Grid):
        raise InputError("Only the map of a picture can be held against a mask; this is a text.")
    if explanation.pixels is not None:
        pixels = explanation.pixels[example].double()
        if tuple(pixels.shape) == tuple(size):
            return pixels
        raise InputError(f"A map of {list(pixels.shape)} pixels does not fit a mask of {list(size)}. Resize the mask.")
    patches = explanation.map(example).double()[None, None]
    return F.interpolate(patches, size=tuple(size), mode="bilinear", align_corners=False)[0, 0]
