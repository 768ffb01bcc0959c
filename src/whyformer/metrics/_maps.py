"""Maps and masks: an explanation as a map of pixels, and the object masks it is compared with."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._plain.setting_checks import quote_value
from whyformer._plain.tokens import Grid
from whyformer.errors import InputError
from whyformer.metrics._registry import MetricFacts
from whyformer.results.explanation import Explanation

MaskLike: TypeAlias = Tensor | np.ndarray | Sequence[Sequence[int]]  # [height width] of 1, 0 and -1

# The facts of metrics that compare a map with an outlined object.
OUTLINED: MetricFacts = {"better": "higher", "kind": "localisation", "needs_truth": "mask", "only": "images"}


def resize_map(explanation: Explanation, example: int, size: Sequence[int]) -> Tensor:
    """One map in float64 of this size: the pixel scores if there are any, else the patches enlarged (bilinear)."""
    grid = explanation.tokens[example]
    if not isinstance(grid, Grid):
        raise InputError("A text has no map of pixels, so it cannot be compared with an image mask.")
    if explanation.pixels is not None:
        pixels = explanation.pixels[example].double()
        if tuple(pixels.shape) == tuple(size):
            return pixels
        raise InputError(
            f"The map has {' x '.join(map(str, pixels.shape))} pixels, but {' x '.join(map(str, size))} are needed. "
            "Give masks of the size of the model's input."
        )
    patches = explanation.map(example).double()[None, None]
    height, width = grid.covers or tuple(size)
    large = F.interpolate(patches, size=(height, width), mode="bilinear", align_corners=False)
    return F.pad(large, (0, size[1] - width, 0, size[0] - height), mode="replicate")[0, 0]


def read_whole_numbers(values: MaskLike, what: str) -> Tensor:
    """Given values as a tensor of integers; `what` names them in the error."""
    try:
        found = torch.as_tensor(values)
        if not found.is_complex():
            return found.cpu().long()
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InputError(f"{what} must be an array of whole numbers, got {quote_value(values)}.")


def check_object_masks(explanation: Explanation, mask: Sequence[MaskLike]) -> list[Tensor]:
    """One [height width] mask of 1, 0 and -1 per example."""
    if not hasattr(mask, "__len__") or len(mask) != len(explanation):
        count = len(mask) if hasattr(mask, "__len__") else "no list of"
        raise InputError(f"Got {count} masks for {len(explanation)} images. Give one mask per image.")
    masks = [read_whole_numbers(values, "A mask") for values in mask]
    for values in masks:
        if values.dim() != 2 or bool(((values != 1) & (values != 0) & (values != -1)).any()):
            raise InputError(
                "A mask must be [height width] with values 1 (object), 0 (background) and -1 (ignored), got "
                f"{list(values.shape)} with values {values.unique().tolist()[:6]}."
            )
    return masks
