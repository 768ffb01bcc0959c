"""Pixel values that look like an image of 0 to 255, where a model needs them normalised."""

from typing import Any

from torch import Tensor

from whyformer._model.preprocessors import ImageProcessor
from whyformer.errors import InputError

LARGEST_NORMALISED = 10.0  # no usual mean and standard deviation give more


def check_pixel_range(pixels: Tensor, processor: ImageProcessor | None, name: str) -> str:
    """Refuse what the model's processor cannot have made; a note if it is not known what the model needs."""
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or not LARGEST_NORMALISED < high <= 255:
        return ""
    found = f"The pixel values run from {low:g} to {high:g}, as in an image that is not normalised"
    expected = find_normalised_range(processor)
    if expected is None:
        return f"{found}. If the model was not trained on such values, scale them as in training."
    raise InputError(
        f"{found}; the processor of {name} gives values from {expected[0]:.3g} to {expected[1]:.3g}. Pass the image "
        "itself: a path, a Pillow image or an array [height, width, channel] of 0 to 255.",
        code="E_IMG_VALUES",
    )


def find_normalised_range(processor: Any) -> tuple[float, float] | None:
    """The values that this processor gives to black and white, over all channels; None if it does not say."""
    if not getattr(processor, "do_rescale", False):
        return None
    if not getattr(processor, "do_normalize", False):
        return 0.0, 1.0
    means, deviations = processor.image_mean, processor.image_std
    pairs = list(zip(means, deviations, strict=True))
    return min(-mean / deviation for mean, deviation in pairs), max((1 - mean) / deviation for mean, deviation in pairs)
