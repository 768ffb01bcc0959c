"""Masks: which pixels are the object, resized and cropped like the image that the model sees.

`mask_values` says what the values in a mask mean:

    binary   0 background, everything else object
    voc      0 background, 255 ignored, everything else object (Pascal VOC)
    trimap   1 object, 2 background, 3 ignored (Oxford pets)

or a mapping from value to 1 (object), 0 (background) or -1 (ignored).
"""

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from whyformer._model import DECODE_ERRORS, FORMATS, MAX_PIXELS, Model, check_regular_file
from whyformer.data.example import DataError, WrongOption
from whyformer.errors import InputError

MASK_VALUES = ("binary", "voc", "trimap")
TRIMAP = {1: 1, 2: 0, 3: -1}
MASK_CODES = {1: 255, 0: 0, -1: 128}  # pixel values of a mask that goes through the image processor


def read_mask(source: Any, meaning: str | Mapping[int, int]) -> np.ndarray:
    """[height width] of 1, 0 and -1 from a path, a Pillow image or an array."""
    if isinstance(source, str | os.PathLike):
        check_regular_file(Path(source))
        values = read_mask_values(Path(source), os.fspath(source))
    else:
        values = np.asarray(source)
        if values.dtype.kind not in "biuf":
            raise DataError(f"A mask must be an image or an array of numbers, got {type(source).__name__}.")
    if values.ndim == 3:
        values = values[..., :3].max(-1) if values.shape[-1] in (3, 4) else values[..., 0]
    if values.ndim != 2 or values.size == 0:
        raise DataError(f"A mask must have shape [height width], got {list(values.shape)}.")
    return decode_mask(values.astype(np.int64), meaning)


def read_mask_values(file: Path | bytes, name: str) -> np.ndarray:
    """The values in an image file, which must not be too large; palettes and bits stay numbers."""
    try:
        with Image.open(BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                limit = f"the limit is {MAX_PIXELS // 1_000_000} megapixels"
                raise InputError(f"The mask {name!r} is too large; {limit}.", code="E_IMG_TOO_LARGE")
            return np.asarray(ImageOps.exif_transpose(opened))
    except (*DECODE_ERRORS, Image.DecompressionBombError):
        raise InputError(f"The mask {name!r} cannot be read as an image.", code="E_IMG_FORMAT") from None


def decode_mask(values: np.ndarray, meaning: str | Mapping[int, int]) -> np.ndarray:
    """1, 0 and -1 from the values in a mask."""
    if isinstance(meaning, Mapping) or meaning == "trimap":
        table = dict(meaning) if isinstance(meaning, Mapping) else TRIMAP
        if unknown := sorted(set(np.unique(values).tolist()) - set(table)):
            raise DataError(f"The mask has the value {unknown[0]}; mask_values has only {sorted(table)}.")
        return np.select([values == value for value in table], list(table.values())).astype(np.int8)
    check_mask_values(meaning)
    if set(np.unique(values).tolist()) <= {-1, 0, 1} and values.min() < 0:  # decoded already
        return values.astype(np.int8)
    marks = (values != 0).astype(np.int8)
    if meaning == "voc":
        marks[values == 255] = -1
    return marks


def check_mask_values(meaning: Any) -> None:
    if not isinstance(meaning, Mapping) and meaning not in MASK_VALUES:
        raise WrongOption(f"There is no mask_values={meaning!r}. Available: {', '.join(MASK_VALUES)}, or a mapping.")


def align_mask(mask: np.ndarray, size: tuple[int, int], model: Model) -> np.ndarray:
    """The mask, resized and cropped by the model's image processor. size: width and height of the image."""
    height, width = mask.shape
    if (width, height) != size:
        raise DataError(f"The mask is {width} x {height} pixels, its image {size[0]} x {size[1]}.")
    if model.processor is None:
        return mask
    coded = np.select([mask == value for value in MASK_CODES], list(MASK_CODES.values())).astype(np.uint8)
    processed = model.processor(
        images=[Image.fromarray(np.repeat(coded[..., None], 3, axis=2))], return_tensors="pt",
        resample=Image.Resampling.NEAREST, do_rescale=False, do_normalize=False,
    )["pixel_values"][0, 0].numpy()  # fmt: skip
    aligned = np.full(processed.shape, -1, dtype=np.int8)  # pixels that the processor adds are ignored
    for value, code in MASK_CODES.items():
        aligned[np.isclose(processed, code)] = value
    return aligned
