"""Read images: a path, a Pillow image or an array becomes an upright RGB image.

The EXIF orientation is applied, transparency is composited over white, 16-bit grey is scaled to 8 bits, and the first
frame of an animation is used. Floating-point grey up to 1 is read as 0 to 1, above that as 0 to 255, with a note. The
size is checked before decoding, because a PNG of 10 kB can hold 400 MB.
"""

import logging
import os
import struct
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from whyformer._model.arrays import image_from_array
from whyformer._plain.paths import find_url
from whyformer._plain.shared_context import NO_NATIVE_LINES, SharedContext
from whyformer.errors import InputError, quote_type

ImageSource: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray

MAX_PIXELS = 25_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
DECODE_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error)  # what Pillow raises while decoding


# Pillow warns about files that we refuse anyway, and about unused tags. The filters belong to the whole process.
SILENCE = SharedContext(partial(warnings.catch_warnings, action="ignore"))
logging.getLogger("PIL").addHandler(logging.NullHandler())  # or its records go to the terminal where nothing is set up


def as_image(source: ImageSource) -> Image.Image:
    """An RGB image from a path, a Pillow image or an array."""
    return read_image(source)[0]


def read_image(source: ImageSource) -> tuple[Image.Image, str]:
    """An RGB image, and a note if the range of its values had to be guessed."""
    if isinstance(source, np.ndarray):
        source = image_from_array(source)
    if isinstance(source, Image.Image):
        return _decode_image(source, "the image"), _note_float_range(source, "The image")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"An image must be a path, a Pillow image or an array, got {quote_type(source)}.")
    path = Path(os.fsdecode(source))
    check_regular_file(path)
    return _read_image(path, path.name)


def read_image_bytes(data: bytes, name: str) -> Image.Image:
    """An RGB image from the contents of a file; error messages call it `name`."""
    return _read_image(BytesIO(data), name)[0]


def _read_image(file: Path | BytesIO, name: str) -> tuple[Image.Image, str]:
    with SILENCE:
        try:
            opened = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            problem = f"{name!r} is not a PNG, JPEG, WebP, BMP, GIF or TIFF image."
            raise InputError(problem, code="E_IMG_FORMAT") from None
        except Image.DecompressionBombError:
            limit = f"the limit is {MAX_PIXELS // 1_000_000} megapixels"
            raise InputError(f"{name!r} is too large; {limit}.", code="E_IMG_TOO_LARGE") from None
        except PermissionError:
            raise InputError(f"Cannot read {str(file)!r}: no permission.", code="E_IMG_READ") from None
        except DECODE_ERRORS as error:
            raise _make_damage_error(name, error) from None
        with opened:
            return _decode_image(opened, name), _note_float_range(opened, name)


def check_regular_file(path: Path) -> None:
    """Refuse missing files and special files; opening a pipe would block for ever."""
    if (url := find_url(path)) is not None:
        raise InputError(f"{url!r} is a URL. Download the image, and pass the file.", code="E_IMG_READ")
    try:
        exists, is_file = path.exists(), path.is_file()
    except OSError as error:  # a name that is too long, a folder without permission
        reason = (error.strerror or "no such file").lower()
        raise InputError(f"Cannot read {str(path)[:100]!r}: {reason}.", code="E_IMG_READ") from None
    if not is_file:
        reason = "not a regular file." if exists else "there is no such file."
        if exists and path.is_dir():
            reason = "not a regular file but a folder. Pass a list of its files."
        elif not exists and " " in str(path):
            reason += " This model takes images; to explain a text, use a text model such as demo/sentiment."
        raise InputError(f"Cannot read {str(path)[:100]!r}: {reason}", code="E_IMG_READ")


def _decode_image(image: Image.Image, name: str) -> Image.Image:
    """Upright and RGB; the size is checked before anything is decoded."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        megapixels, limit = width * height / 1_000_000, MAX_PIXELS // 1_000_000
        raise InputError(f"{name!r} has {megapixels:.0f} megapixels; the limit is {limit}.", code="E_IMG_TOO_LARGE")
    if min(width, height) == 0:
        raise InputError(f"{name!r} is {width} x {height} pixels: it is empty.", code="E_IMG_SHAPE")
    if max(width, height) > 50 * min(width, height):
        raise InputError(f"{name!r} is {width} x {height} pixels: too long and thin for an image.", code="E_IMG_SHAPE")
    try:
        with NO_NATIVE_LINES if image.format == "TIFF" else nullcontext():
            image.load()
    except DECODE_ERRORS as error:
        raise _make_damage_error(name, error) from None
    try:
        with suppress(*DECODE_ERRORS):  # an orientation that cannot be read is ignored
            image = ImageOps.exif_transpose(image)
        return _to_rgb(image, name)
    except DECODE_ERRORS:
        problem = f"{name!r} has the mode {image.mode}, which cannot be converted to RGB."
        raise InputError(problem, code="E_IMG_VALUES") from None


def _make_damage_error(name: str, error: Exception) -> InputError:
    return InputError(f"{name!r} is damaged or truncated ({error}).", code="E_IMG_BROKEN")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = _to_eight_bits(image, name)
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        transparent = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale grey of more than 8 bits: convert() would clip everything above 255 to white."""
    numbers = image.convert("F")
    values = np.asarray(numbers)
    low, high = float(values.min()), float(values.max())
    if not abs(low) + abs(high) < np.inf:  # also for NaN
        raise InputError(f"{name!r} contains NaN or infinity.", code="E_IMG_VALUES")
    white = 65535.0 if image.mode.startswith("I") else 1.0 if high <= 1 else 255.0
    if low < 0 or high > white:
        raise InputError(
            f"{name!r} contains values from {low:g} to {high:g}; grey values must be between 0 and {white:g}. "
            "Scale them first.",
            code="E_IMG_VALUES",
        )
    grey = numbers.point(lambda value: value * (255 / white) + 0.5).convert("L")
    grey.info.pop("transparency", None)  # a 16-bit value
    return grey


def _note_float_range(image: Image.Image, name: str) -> str:
    """A note if floating-point grey values, already checked, are above 1."""
    high = float(image.getextrema()[1]) if image.mode == "F" else 0.0  # type: ignore[arg-type]
    note = f"{name} has floating-point values up to {high:g}, so 255 was taken for white."
    return "" if high <= 1 else f"{note} If white is 1, clip the values to 1."
