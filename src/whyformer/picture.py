"""Pictures in: a path or a Pillow image becomes RGB as a person sees it, or a clear error.

The EXIF orientation is applied, transparency goes over white, 16-bit grey is scaled by its range. The size is checked before
decoding: a PNG of 10 kB can hold 400 MB.
"""

import os
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from whyformer.errors import InputError

MOST_PIXELS = 25_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


def as_picture(source: Any) -> Image.Image:
    """An RGB picture from a path or a Pillow image."""
    if isinstance(source, Image.Image):
        return _upright(source, "the picture")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"A picture is a path or a Pillow image, not {type(source).__name__}.")
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"Cannot read {str(source)!r}: {'not a regular file' if path.exists() else 'there is no such file'}."
        )
    try:
        with Image.open(path, formats=FORMATS) as opened:
            return _upright(opened, path.name)
    except UnidentifiedImageError:
        raise InputError(f"{path.name!r} is not a PNG, JPEG, WebP, BMP, GIF or TIFF image.") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"{path.name!r} is too large; at most {MOST_PIXELS // 1_000_000} megapixels are read."
        ) from None
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{path.name!r} is damaged or ends early ({error}).") from None


def _upright(picture: Image.Image, name: str) -> Image.Image:
    width, height = picture.size
    if width * height > MOST_PIXELS:
        megapixels = width * height / 1_000_000
        raise InputError(f"{name!r} has {megapixels:.0f} megapixels; at most {MOST_PIXELS // 1_000_000} are read.")
    if max(width, height) > 50 * min(width, height):
        raise InputError(f"{name!r} is {width} x {height}: too long and thin to be a picture.")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16 bits: convert() would clip everything above 255 to white
        low, high = picture.getextrema()
        span = max(float(high) - float(low), 1.0)  # type: ignore[arg-type]
        picture = picture.convert("F").point(lambda value: (value - low) * (255 / span)).convert("L")  # type: ignore[operator]
    if "A" in picture.getbands() or "transparency" in picture.info:
        over = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return picture.convert("RGB")
