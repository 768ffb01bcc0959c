"""Keep the explained image, and the part of it that the model saw, so that a map can be drawn over it."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import BytesIO

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._model.image import DECODE_ERRORS, SILENCE
from whyformer._plain.json_value import JsonObject

MAX_KEPT_PIXELS = 4_000_000  # a larger image is kept at 1/2, 1/3, ... of its size
MAX_PNG_PIXELS = 128 * 128  # up to this size an image is saved without loss
UNNAMED_IMAGE = "image"  # the name of an image that came without one; of several, with its number


@dataclass(frozen=True)
class ImageView:
    """The part of an image that fills the input of a model, in pixels of the image.

    It can extend beyond the image, where the input is padded. `height` and `width` are those of the input.
    """

    left: float
    top: float
    right: float
    bottom: float
    height: int
    width: int

    def scale(self, factor: float) -> "ImageView":
        return replace(self, **{edge: getattr(self, edge) * factor for edge in ("left", "top", "right", "bottom")})

    def crop_to_patches(self, rows: int, columns: int) -> "ImageView":
        """The part covered by this grid of patches; pixels left over at the right and bottom belong to no patch."""
        down = rows * (self.height // rows) / self.height if rows <= self.height else 1.0
        across = columns * (self.width // columns) / self.width if columns <= self.width else 1.0
        right, bottom = self.left + (self.right - self.left) * across, self.top + (self.bottom - self.top) * down
        return replace(self, right=right, bottom=bottom)


class KeptImage:
    """An image to draw on: upright, RGB, without metadata.

    Images of more than 4 megapixels are kept at a smaller size. In a file it is a PNG if it is small, otherwise a JPEG
    of quality 92: for display, never for computation.
    """

    def __init__(self, image: Image.Image, view: "ImageView | Callable[[], ImageView | None] | None" = None) -> None:
        self.shrink_factor = 1
        while image.width * image.height > MAX_KEPT_PIXELS * self.shrink_factor**2:
            self.shrink_factor += 1
        self.image = image if self.shrink_factor == 1 else image.reduce(self.shrink_factor)
        self._view_or_finder = view

    @cached_property
    def view(self) -> ImageView | None:
        """Computed on first use; None if the input of the model is not a rectangle of the image."""
        view = self._view_or_finder() if callable(self._view_or_finder) else self._view_or_finder
        return view if view is None or self.shrink_factor == 1 else view.scale(1 / self.shrink_factor)

    @cached_property
    def data(self) -> bytes:
        """The image as PNG or JPEG."""
        file, bare = BytesIO(), Image.new("RGB", self.image.size)
        bare.paste(self.image)  # Pillow would also write the comments and profiles of the original
        if bare.width * bare.height <= MAX_PNG_PIXELS:
            bare.save(file, "PNG", optimize=True)
        else:
            bare.save(file, "JPEG", quality=92, subsampling=0)
        return file.getvalue()

    @staticmethod
    def read(data: bytes, view: ImageView | None) -> "KeptImage":
        """Restore an image from `data`; ValueError if it is damaged or larger than any image that is kept."""
        with SILENCE:
            try:
                with Image.open(BytesIO(data), formats=("PNG", "JPEG")) as opened:
                    if opened.width * opened.height > MAX_KEPT_PIXELS:
                        raise ValueError("larger than any image that is kept")
                    kept = KeptImage(opened.convert("RGB"), view)
            except (*DECODE_ERRORS, Image.DecompressionBombError) as error:
                raise ValueError(f"an image cannot be read: {error}") from None
        kept.__dict__["data"] = data
        return kept

    def to_json_value(self) -> JsonObject:
        view = None if self.view is None else asdict(self.view)
        return {"view": view, "data": b64encode(self.data).decode("ascii")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptImage) and self.view == other.view and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.image.size, self.shrink_factor))

    def __repr__(self) -> str:
        return f"<KeptImage of {self.image.width} x {self.image.height} pixels>"


def find_view(process: Callable[[Image.Image], Tensor], width: int, height: int) -> ImageView | None:
    """Which part of images of this size a processor passes to the model, measured by processing test images.

    In the first test image red and blue rise from left to right and green from top to bottom. A black and a white image
    calibrate the levels and reveal padding. This works for every processor that resizes, crops and pads, whatever its
    settings are called.
    """
    across, down = (np.linspace(0, 255, size).round().astype("uint8") for size in (width, height))
    ramps = np.stack(np.broadcast_arrays(across, down[:, None], across), -1)
    levels = []
    for image in (Image.fromarray(ramps), *(Image.new("RGB", (width, height), c) for c in ("black", "white"))):
        pixels = process(image)
        if pixels.ndim != 4 or pixels.shape[0] != 1 or pixels.shape[1] != 3:
            return None
        levels.append(pixels[0].double().cpu().numpy())
    shown, black, white = levels
    real = (abs(white - black) > 1e-6).all(0)
    if not real.any():
        return None
    share = np.where(real, (shown - black) / np.where(real, white - black, 1), 0)
    ends = [_find_ends(share[channel], real, axis, size) for channel, axis, size in ((0, 1, width), (1, 0, height))]
    if ends[0] is None or ends[1] is None:
        return None
    left, right = (_snap_edge(end, width) for end in ends[0])
    top, bottom = (_snap_edge(end, height) for end in ends[1])
    return ImageView(left, top, right, bottom, *shown.shape[1:])


def _snap_edge(position: float, size: int) -> float:
    """The edge of the image if it is within a third of a pixel; levels are rounded, so estimates are never exact."""
    return next((float(edge) for edge in (0, size) if abs(position - edge) < 0.34), position)


def _find_ends(share: np.ndarray, real: np.ndarray, axis: int, size: int) -> tuple[float, float] | None:
    """Where the input begins and ends along one axis of the image, from a straight line fitted to the ramp."""
    other = 1 - axis
    places = np.nonzero(real.all(other) if real.all(other).any() else real.any(other))[0]
    count = share.shape[axis]
    margin = 2 if len(places) > 8 else 0  # resampling bends the ramp at its ends
    places = places[margin : len(places) - margin]
    seen = np.array([np.median(np.take(share, i, axis)[np.take(real, i, axis)]) for i in places])
    if size == 1 or len(places) < 2:
        return (0.0, float(size)) if size == 1 else None
    inner = (seen > 0.004) & (seen < 0.996)
    if inner.sum() >= 2:
        places, seen = places[inner], seen[inner]
    slope, start = np.polyfit(places + 0.5, seen * (size - 1) + 0.5, 1)
    straight = start + slope * (places + 0.5)
    if slope <= 0 or abs(straight - (seen * (size - 1) + 0.5)).max() > max(1.5, 0.02 * size, 1.5 * slope):
        return None
    return float(start), float(start + slope * count)
