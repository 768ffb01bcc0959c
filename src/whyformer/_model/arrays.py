"""Numpy arrays as inputs.

An array becomes what it most likely is. For a model with an image processor, [height width], [height width channel] and
a stack of the latter are images; with the channels in front they are pixel values, as tensors are. For every other
model an array is the tensor of the same numbers. An array of strings or objects is a list of texts or images.
"""

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from whyformer.errors import InputError

CHANNELS = (1, 3, 4)  # grey, RGB, RGB with transparency


def read_arrays(inputs: Any, *, are_images: bool) -> Any:
    """The inputs of a model with tensors, images or texts in place of arrays; all else as it is."""
    if isinstance(inputs, np.ndarray):
        if inputs.dtype.kind in "UT" or holds_inputs(inputs):
            return read_arrays(inputs.tolist(), are_images=are_images)
        if not are_images or has_channels_first(inputs):
            return as_tensor(inputs)
        return [image_from_array(image) for image in inputs] if inputs.ndim == 4 else image_from_array(inputs)
    if isinstance(inputs, Mapping):
        return {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        changed = (np.ndarray, Mapping)
        if not any(isinstance(item, changed) for item in inputs):
            return inputs  # also a TextPair
        items = [read_arrays(item, are_images=are_images) if isinstance(item, changed) else item for item in inputs]
        return items if isinstance(inputs, list) else tuple(items)
    return inputs


def holds_inputs(array: np.ndarray) -> bool:
    """Whether this is a list in disguise: texts or images as objects, such as `frame["text"].to_numpy()`."""
    return array.dtype.kind == "O" and array.ndim == 1 and not any(isinstance(item, Number) for item in array)


def has_channels_first(array: np.ndarray) -> bool:
    """Whether these are floating-point pixel values, [channel height width] or a batch of them."""
    is_image_or_batch = array.dtype.kind == "f" and array.ndim in (3, 4)
    return is_image_or_batch and array.shape[-3] in CHANNELS and array.shape[-1] not in CHANNELS


def as_tensor(array: np.ndarray) -> Tensor:
    """A copy as a tensor; small integers become int64, as token ids must be."""
    kind = array.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.array(array, dtype=np.int64 if kind.kind in "iu" else kind, order="C"))
    except TypeError:
        raise InputError(
            f"An array of the type {array.dtype} cannot become a tensor. Pass integers or floating-point numbers.",
            code="E_TENSOR",
        ) from None


def image_from_array(array: np.ndarray) -> Image.Image:
    """The image of an array [height width] or [height width channel]: integers from 0 to 255, or floats from 0 to 1."""
    shape = list(array.shape)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in CHANNELS):
        seems = array.ndim == 3 and array.shape[0] in CHANNELS
        hint = " Its channels seem to come first: use array.transpose(1, 2, 0)." if seems else ""
        raise InputError(
            f"An image array must have the shape [height, width] or [height, width, channel] with 1, 3 or 4 channels, "
            f"got {shape}.{hint}",
            code="E_IMG_SHAPE",
        )
    if 0 in shape:
        raise InputError(f"The image array is empty: shape {shape}.", code="E_IMG_SHAPE")
    pixels = to_bytes(array)
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)


def to_bytes(array: np.ndarray) -> np.ndarray:
    """Pixels from 0 to 255. Values of another range are refused, since their white is not known."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"An image array must hold numbers, got the type {array.dtype}.", code="E_IMG_VALUES")
    if array.dtype == bool or array.dtype.kind == "f":
        white, kind = 1, "floating-point values must be between 0 and 1. Divide them by 255 if that is white."
    elif array.dtype == np.uint16:
        white, kind = 65535, ""
    else:
        white, kind = 255, "integers must be between 0 and 255."
    low, high = float(array.min()), float(array.max())
    if not abs(low) + abs(high) < np.inf:  # also for NaN
        raise InputError("The image array contains NaN or infinity.", code="E_IMG_VALUES")
    if not 0 <= low <= high <= white:
        raise InputError(f"The image array contains values from {low:g} to {high:g}; {kind}", code="E_IMG_VALUES")
    return np.ascontiguousarray(array if white == 255 else array * (255 / white) + 0.5).astype(np.uint8)
