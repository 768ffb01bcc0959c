"""Pictures in: a path or a Pillow image becomes RGB as a person sees it, or a clear error.

The EXIF orientation is applied, transparency goes over white, 16-bit grey is scaled to 8 bits, of an animation the
first frame is taken. The size is checked before decoding: a PNG of 10 kB can hold 400 MB. What was explained is kept,
with the part of it that the model saw, so that a map can be drawn over it.
"""

import os
import struct
import threading
import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from whyformer.errors import InputError

MAX_PIXELS = 25_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
READ_LOCK = threading.Lock()  # filters of warnings belong to the whole process
DECODE_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error)  # what Pillow raises while it reads


def as_image(source: Any) -> Image.Image:
    """An RGB picture from a path or a Pillow image."""
    if isinstance(source, Image.Image):
        return _decode_image(source, "the picture")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"A picture is a path or a Pillow image, not {type(source).__name__}.")
    path = Path(source)
    _check_regular_file(path)
    with READ_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of much that we refuse, and of tags nobody looks at
        return _read_image(path)


def _read_image(path: Path) -> Image.Image:
    try:
        opened = Image.open(path, formats=FORMATS)
    except UnidentifiedImageError:
        raise InputError(f"{path.name!r} is not a PNG, JPEG, WebP, BMP, GIF or TIFF image.") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"{path.name!r} is too large; at most {MAX_PIXELS // 1_000_000} megapixels are read."
        ) from None
    except PermissionError:
        raise InputError(f"Cannot read {str(path)!r}: no permission.") from None
    except DECODE_ERRORS as error:
        raise _make_damage_error(path.name, error) from None
    with opened:
        return _decode_image(opened, path.name)


def _check_regular_file(path: Path) -> None:
    """Opening a pipe would wait for ever."""
    try:
        there, is_file = path.exists(), path.is_file()
    except OSError as error:  # a name that is too long, a folder without permission
        raise InputError(f"Cannot read {str(path)[:100]!r}: {(error.strerror or 'no such file').lower()}.") from None
    if not is_file:
        raise InputError(
            f"Cannot read {str(path)[:100]!r}: {'not a regular file' if there else 'there is no such file'}."
            + (" This model takes pictures; a text needs a model of texts." if " " in str(path) and not there else "")
        )


def _decode_image(picture: Image.Image, name: str) -> Image.Image:
    """As a person sees it; the size is looked at before anything is decoded."""
    width, height = picture.size
    if width * height > MAX_PIXELS:
        megapixels = width * height / 1_000_000
        raise InputError(f"{name!r} has {megapixels:.0f} megapixels; at most {MAX_PIXELS // 1_000_000} are read.")
    if min(width, height) == 0:
        raise InputError(f"{name!r} is {width} x {height}: there is nothing in it.")
    if max(width, height) > 50 * min(width, height):
        raise InputError(f"{name!r} is {width} x {height}: too long and thin to be a picture.")
    try:
        picture.load()
    except DECODE_ERRORS as error:
        raise _make_damage_error(name, error) from None
    try:
        return _to_rgb(_apply_orientation(picture), name)
    except DECODE_ERRORS:
        raise InputError(f"{name!r} has the mode {picture.mode}, which cannot be turned into RGB.") from None


def _make_damage_error(name: str, error: Exception) -> InputError:
    return InputError(f"{name!r} is damaged or ends early ({error}).")


def _apply_orientation(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except DECODE_ERRORS:  # an orientation that cannot be read is none
        return picture


def _to_rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode.startswith(("I", "F")):
        picture = _to_eight_bits(picture, name)
    if "A" in picture.getbands() or "a" in picture.getbands() or "transparency" in picture.info:
        over = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return picture.convert("RGB")


def _to_eight_bits(picture: Image.Image, name: str) -> Image.Image:
    """Grey with more than 8 bits: convert() would cut everything above 255 to white."""
    numbers = picture.convert("F")
    low, high = numbers.getextrema()
    values = (float(low), float(high))  # type: ignore[arg-type]
    if not all(abs(value) < float("inf") for value in values) or _has_nan(numbers):
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


def _has_nan(numbers: Image.Image) -> bool:
    import numpy

    return bool(numpy.isnan(numpy.asarray(numbers)).any())


# --- kept, to be drawn on ---------------------------------------------------------------------------------------------

MAX_KEPT_PIXELS = 4_000_000  # pixels; a larger picture is kept at half, a third, ... of its size
MAX_PNG_PIXELS = 128 * 128  # pixels; up to here a picture is kept without loss


@dataclass(frozen=True)
class ImageView:
    """Where a model looks in a picture: the part that fills its input, in pixels of the picture.

    It may reach beyond the picture, where the input is padded. `height` and `width` are those of the input.
    """

    left: float
    top: float
    right: float
    bottom: float
    height: int
    width: int

    def scaled(self, factor: float) -> "ImageView":
        left, top, right, bottom = (edge * factor for edge in (self.left, self.top, self.right, self.bottom))
        return ImageView(left, top, right, bottom, self.height, self.width)

    def crop_to_patches(self, rows: int, columns: int) -> "ImageView":
        """The part that so many patches cover: what is left over at the right and the bottom belongs to none."""
        down = rows * (self.height // rows) / self.height if rows <= self.height else 1.0
        across = columns * (self.width // columns) / self.width if columns <= self.width else 1.0
        right, bottom = self.left + (self.right - self.left) * across, self.top + (self.bottom - self.top) * down
        return ImageView(self.left, self.top, right, bottom, self.height, self.width)


class KeptImage:
    """A picture as a person sees it, kept to draw on: upright, in colour, without what a camera wrote beside it.

    Pictures of more than 4 megapixels are kept smaller. In a file it is a PNG if it is small, else a JPEG of quality
    92: to be looked at, never to be computed with.
    """

    def __init__(self, image: Image.Image, view: "ImageView | Callable[[], ImageView | None] | None" = None) -> None:
        smaller = 1
        while image.width * image.height > MAX_KEPT_PIXELS * smaller * smaller:
            smaller += 1
        self.shrink_factor = smaller
        self.image = image if smaller == 1 else image.reduce(smaller)
        self._find = view

    @cached_property
    def view(self) -> ImageView | None:
        """Found when it is asked for; None if the model's input is no straight part of the picture."""
        found = self._find() if callable(self._find) else self._find
        return found if found is None or self.shrink_factor == 1 else found.scaled(1 / self.shrink_factor)

    @cached_property
    def data(self) -> bytes:
        file, bare = BytesIO(), Image.new("RGB", self.image.size)
        bare.paste(self.image)  # Pillow would write comments and profiles that came with the picture
        if bare.width * bare.height <= MAX_PNG_PIXELS:
            bare.save(file, "PNG", optimize=True)
        else:
            bare.save(file, "JPEG", quality=92, subsampling=0)
        return file.getvalue()

    @staticmethod
    def read(data: bytes, view: ImageView | None) -> "KeptImage":
        """From a file."""
        with Image.open(BytesIO(data), formats=("PNG", "JPEG")) as opened:
            if opened.width * opened.height > MAX_KEPT_PIXELS:
                raise ValueError("a kept picture is never that large")
            kept = KeptImage(opened.convert("RGB"), view)
        kept.__dict__["data"] = data
        return kept

    def to_json_value(self) -> dict[str, Any]:
        view = None if self.view is None else asdict(self.view)
        return {"view": view, "data": b64encode(self.data).decode("ascii")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptImage) and self.view == other.view and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.image.size, self.shrink_factor))

    def __repr__(self) -> str:
        return f"<Kept picture of {self.image.width} x {self.image.height} pixels>"


def find_view(process: Callable[[Image.Image], Any], width: int, height: int) -> ImageView | None:
    """Where a processor looks in pictures of this size, found by sending pictures through it that say where they are.

    Red and blue rise from left to right, green from top to bottom; a black and a white picture tell the levels apart
    and show what is padding. So it holds for every processor that resizes, crops and pads, whatever its settings are
    called.
    """
    import numpy

    across, down = (numpy.linspace(0, 255, size).round().astype("uint8") for size in (width, height))
    ramps = numpy.stack(numpy.broadcast_arrays(across, down[:, None], across), -1)
    levels = []
    for picture in (Image.fromarray(ramps), *(Image.new("RGB", (width, height), c) for c in ("black", "white"))):
        pixels = process(picture)
        if pixels.ndim != 4 or pixels.shape[0] != 1 or pixels.shape[1] != 3:
            return None
        levels.append(pixels[0].double().cpu().numpy())
    shown, black, white = levels
    real = (abs(white - black) > 1e-6).all(0)
    if not real.any():
        return None
    share = numpy.where(real, (shown - black) / numpy.where(real, white - black, 1), 0)
    ends = [_find_ends(share[channel], real, axis, size) for channel, axis, size in ((0, 1, width), (1, 0, height))]
    if ends[0] is None or ends[1] is None:
        return None
    left, right = (_snap_edge(end, width) for end in ends[0])
    top, bottom = (_snap_edge(end, height) for end in ends[1])
    return ImageView(left, top, right, bottom, *shown.shape[1:])


def _snap_edge(place: float, size: int) -> float:
    """An edge of the picture where it was found within a third of a pixel; levels are rounded, so it never is exact."""
    return next((float(edge) for edge in (0, size) if abs(place - edge) < 0.34), place)


def _find_ends(share: Any, real: Any, axis: int, size: int) -> tuple[float, float] | None:
    """Where the input begins and ends along one axis of the picture, from a straight line through what it shows."""
    import numpy

    other = 1 - axis
    places = numpy.nonzero(real.all(other) if real.all(other).any() else real.any(other))[0]
    count = share.shape[axis]
    margin = 2 if len(places) > 8 else 0  # resampling bends the ramp at its ends
    places = places[margin : len(places) - margin]
    seen = numpy.array([numpy.median(numpy.take(share, i, axis)[numpy.take(real, i, axis)]) for i in places])
    if size == 1 or len(places) < 2:
        return (0.0, float(size)) if size == 1 else None
    inner = (seen > 0.004) & (seen < 0.996)
    if inner.sum() >= 2:
        places, seen = places[inner], seen[inner]
    slope, start = numpy.polyfit(places + 0.5, seen * (size - 1) + 0.5, 1)
    straight = start + slope * (places + 0.5)
    if slope <= 0 or abs(straight - (seen * (size - 1) + 0.5)).max() > max(1.5, 0.02 * size, 1.5 * slope):
        return None
    return float(start), float(start + slope * count)
