"""Pictures in: a path or a Pillow image becomes RGB as a person sees it, or a clear error.

The EXIF orientation is applied, transparency goes over white, 16-bit grey is scaled to 8 bits, of an animation the
first frame is taken. The size is checked before decoding: a PNG of 10 kB can hold 400 MB.
"""

import os
import struct
import threading
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from whyformer.errors import InputError

MOST_PIXELS = 25_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
READING = threading.Lock()  # filters of warnings belong to the whole process
DAMAGE = (OSError, ValueError, SyntaxError, EOFError, struct.error)  # what Pillow raises while it reads


def as_picture(source: Any) -> Image.Image:
    """An RGB picture from a path or a Pillow image."""
    if isinstance(source, Image.Image):
        return _seen(source, "the picture")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"A picture is a path or a Pillow image, not {type(source).__name__}.")
    path = Path(source)
    _check_regular(path)
    with READING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of much that we refuse, and of tags nobody looks at
        return _read(path)


def _read(path: Path) -> Image.Image:
    try:
        opened = Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:
        raise InputError(f"{path.name!r} is not a PNG, JPEG, WebP, BMP, GIF or TIFF image.") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"{path.name!r} is too large; at most {MOST_PIXELS // 1_000_000} megapixels are read."
        ) from None
    except PermissionError:
        raise InputError(f"Cannot read {str(path)!r}: no permission.") from None
    except DAMAGE as error:
        raise _damaged(path.name, error) from None
    with opened:
        return _seen(opened, path.name)


def _check_regular(path: Path) -> None:
    """Opening a pipe would wait for ever."""
    try:
        there, is_file = path.exists(), path.is_file()
    except OSError as error:  # a name that is too long, a folder without permission
        raise InputError(f"Cannot read {str(path)[:100]!r}: {(error.strerror or 'no such file').lower()}.") from None
    if not is_file:
        raise InputError(
            f"Cannot read {str(path)[:100]!r}: {'not a regular file' if there else 'there is no such file'}."
        )


def _seen(picture: Image.Image, name: str) -> Image.Image:
    """As a person sees it; the size is looked at before anything is decoded."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        megapixels = width * height / 1_000_000
        raise InputError(f"{name!r} has {megapixels:.0f} megapixels; at most {MOST_PIXELS // 1_000_000} are read.")
    if min(width, height) == 0:
        raise InputError(f"{name!r} is {width} x {height}: there is nothing in it.")
    if max(width, height) > 50 * min(width, height):
        raise InputError(f"{name!r} is {width} x {height}: too long and thin to be a picture.")
    try:
        picture.load()
    except DAMAGE as error:
        raise _damaged(name, error) from None
    try:
        return _coloured(_upright(picture), name)
    except DAMAGE:
        raise InputError(f"{name!r} has the mode {picture.mode}, which cannot be turned into RGB.") from None


def _damaged(name: str, error: Exception) -> InputError:
    return InputError(f"{name!r} is damaged or ends early ({error}).")


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except DAMAGE:  # an orientation that cannot be read is none
        return picture


def _coloured(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode.startswith(("I", "F")):
        picture = _eight_bits(picture, name)
    if "A" in picture.getbands() or "a" in picture.getbands() or "transparency" in picture.info:
        over = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return picture.convert("RGB")


def _eight_bits(picture: Image.Image, name: str) -> Image.Image:
    """Grey with more than 8 bits: convert() would cut everything above 255 to white."""
    numbers = picture.convert("F")
    low, high = numbers.getextrema()
    values = (float(low), float(high))  # type: ignore[arg-type]
    if not all(abs(value) < float("inf") for value in values) or _holds_nan(numbers):
        raise InputError(f"{name!r} holds NaN or infinity.")
    full = 65535.0 if picture.mode.startswith("I") else 1.0 if values[1] <= 1 else 255.0
    if values[0] < 0 or values[1] > full:
        raise InputError(
            f"{name!r} holds numbers from {values[0]:g} to {values[1]:g}; a grey picture goes from 0 to {full:g}. "
            "Scale it first."
        )
    grey = numbers.point(lambda value: value * (255 / full) + 0.5).convert("L")
    grey.info.pop("transparency", None)  # its value was one of 16 bits
    return grey


def _holds_nan(numbers: Image.Image) -> bool:
    import numpy

    return bool(numpy.isnan(numpy.asarray(numbers)).any())
