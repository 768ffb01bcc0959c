"""Masks: which pixels are the object, brought to the size and crop in which the model sees the picture.

What the numbers of a mask file mean is one of

    binary   0 background, everything else object
    voc      0 background, 255 not to be counted, everything else object (Pascal VOC)
    trimap   1 object, 2 background, 3 not to be counted (Oxford pets)

or a mapping from number to 1, 0 or -1.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from whyformer._model.model import Model
from whyformer.errors import InputError

MASK_VALUES = ("binary", "voc", "trimap")
TRIMAP = {1: 1, 2: 0, 3: -1}
MASK_CODES = {1: 255, 0: 0, -1: 128}  # of a mask while it goes through the processor as if it were a picture


def read_mask(source: Any, meaning: str | Mapping[int, int]) -> np.ndarray:
    """[height width] of 1, 0 and -1 from a path, a Pillow image or an array."""
    if isinstance(source, str | os.PathLike):
        try:
            with Image.open(source) as opened:
                numbers = np.asarray(ImageOps.exif_transpose(opened))
        except (OSError, ValueError, SyntaxError):
            raise InputError(f"The mask {os.fspath(source)!r} cannot be read as a picture.") from None
    else:
        numbers = np.asarray(source)
    if numbers.ndim == 3:
        numbers = numbers[..., :3].max(-1) if numbers.shape[-1] in (3, 4) else numbers[..., 0]
    if numbers.ndim != 2 or numbers.size == 0:
        raise InputError(f"A mask has the shape [height width]; this one has {list(numbers.shape)}.")
    return decode_mask(numbers.astype(np.int64), meaning)


def decode_mask(numbers: np.ndarray, meaning: str | Mapping[int, int]) -> np.ndarray:
    """1, 0 and -1 from what the file holds."""
    if isinstance(meaning, Mapping) or meaning == "trimap":
        table = dict(meaning) if isinstance(meaning, Mapping) else TRIMAP
        if strange := sorted(set(np.unique(numbers).tolist()) - set(table)):
            raise InputError(f"The mask holds {strange[0]}, which has no meaning here; known are {sorted(table)}.")
        return np.select([numbers == number for number in table], list(table.values())).astype(np.int8)
    if meaning not in MASK_VALUES:
        raise InputError(f"mask_values={meaning!r} is not known. There are: {', '.join(MASK_VALUES)}, or a mapping.")
    if set(np.unique(numbers).tolist()) <= {-1, 0, 1} and numbers.min() < 0:  # made by hand, already in our numbers
        return numbers.astype(np.int8)
    marks = (numbers != 0).astype(np.int8)
    if meaning == "voc":
        marks[numbers == 255] = -1
    return marks


def align_mask(mask: np.ndarray, size: tuple[int, int], model: Model) -> np.ndarray:
    """The mask of a picture of this size, as the model sees it: resized and cropped by the same processor."""
    height, width = mask.shape
    if (width, height) != size:
        raise InputError(f"The mask is {width} x {height} pixels, its picture {size[0]} x {size[1]}.")
    if model.processor is None:
        return mask
    coded = np.select([mask == value for value in MASK_CODES], list(MASK_CODES.values())).astype(np.uint8)
    made = model.processor(
        images=[Image.fromarray(np.repeat(coded[..., None], 3, axis=2))], return_tensors="pt",
        resample=Image.Resampling.NEAREST, do_rescale=False, do_normalize=False,
    )["pixel_values"][0, 0].numpy()  # fmt: skip
    found = np.full(made.shape, -1, dtype=np.int8)  # what the processor has filled in is not counted
    for value, code in MASK_CODES.items():
        found[np.isclose(made, code)] = value
    return found
