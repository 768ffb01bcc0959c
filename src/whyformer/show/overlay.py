"""Maps of scores as images: over the image they explain, at its size and orientation, or alone.

The score of every pixel of the image is looked up at its position in the model's view, so a patch is drawn exactly over
the pixels it was computed from, however the image was cropped, padded or rotated. Outside the view the map is 0 and the
image is shown without colour.
"""

from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from whyformer._model import ImageView
from whyformer.show.colours import find_limits, find_robust_limits, paint_scores
from whyformer.show.wording import format_score

MAP_SIDE = 448  # pixels; a map alone is enlarged to about this size
OVERLAY_STRENGTH = 0.85  # opacity of the strongest colour over an image
PERCENTILE = 99.0  # where colours are clipped
CONTOUR_LEVELS = (0.5, 0.75, 0.9)  # shares of the way to each colour limit


@dataclass(frozen=True)
class ColourScale:
    """The scores that get the first and the last colour, and how they were chosen."""

    between: tuple[float, float]
    largest: float
    percentile: float | None

    def describe(self, *, signed: bool) -> str:
        """The limits and how they were chosen, for a caption."""
        return f"colours from {self.format_limits(signed=signed)}: {self.describe_limits(signed=signed)}"

    def format_limits(self, *, signed: bool) -> str:
        """'-0.3 to +0.3'"""
        return " to ".join(format_score(limit, signed=signed, digits=2) for limit in self.between)

    def describe_limits(self, *, signed: bool) -> str:
        """How the limits were chosen."""
        if self.percentile is None:
            return "the smallest and the largest score"
        what = "magnitudes" if signed else "scores"
        return f"clipped at the {self.percentile:g}th percentile of the {what}; the largest is {self.largest:.2g}"


def choose_colour_scale(scores: Tensor, *, signed: bool, percentile: float | None = PERCENTILE) -> ColourScale:
    """Clip at a percentile, so that a few extreme patches do not make all others pale; None: no clipping."""
    largest = (scores.abs() if signed else scores).max().item() if scores.numel() else 0.0
    if percentile is None:
        return ColourScale(find_limits(scores, signed=signed), largest, None)
    return ColourScale(find_robust_limits(scores, signed=signed, percentile=percentile), largest, percentile)


def overlay_map(
    image: Image.Image,
    scores: Tensor,
    view: ImageView,
    between: tuple[float, float],
    *,
    signed: bool,
    smooth: bool = True,
    contours: bool = False,
    outline: bool = True,
) -> Image.Image:
    """A map [rows columns] over its image; smooth: interpolate between patch centres, else every patch is flat."""
    placed, inside = sample_at_pixels(scores, view.crop_to_patches(*scores.shape), image.size, smooth=smooth)
    ground = torch.frombuffer(bytearray(image.convert("L").tobytes()), dtype=torch.uint8)
    ground = ground.reshape(image.height, image.width, 1).float()
    ground = 255 - (255 - ground) * 0.82  # a little lighter, so that colour shows on dark parts
    strength = measure_strength(placed, between, signed=signed)
    alpha = (0.12 + (OVERLAY_STRENGTH - 0.12) * strength.sqrt())[..., None] * inside[..., None]
    mixed = ground * (1 - alpha) + paint_scores(placed, between, signed=signed).float() * alpha
    drawn = Image.fromarray(mixed.round().clamp(0, 255).byte().contiguous().numpy())
    if contours:
        draw_contours(drawn, placed, inside, between, signed=signed)
    if outline:
        draw_outline(drawn, view)
    return drawn


def sample_at_pixels(scores: Tensor, view: ImageView, size: tuple[int, int], *, smooth: bool) -> tuple[Tensor, Tensor]:
    """The score at the centre of every pixel, [height width], and whether the model sees that pixel (0 or 1)."""
    width, height = size
    x = ((torch.arange(width, dtype=torch.double) + 0.5) - view.left) / (view.right - view.left)
    y = ((torch.arange(height, dtype=torch.double) + 0.5) - view.top) / (view.bottom - view.top)
    inside = ((y >= 0) & (y < 1))[:, None] & ((x >= 0) & (x < 1))[None]
    values = scores.double()
    if smooth:
        placed = interpolate_axis(interpolate_axis(values, x, 1), y, 0)
    else:
        columns = (x * values.shape[1]).floor().long().clamp(0, values.shape[1] - 1)
        rows = (y * values.shape[0]).floor().long().clamp(0, values.shape[0] - 1)
        placed = values[rows][:, columns]
    return placed * inside, inside.float()


def interpolate_axis(values: Tensor, positions: Tensor, axis: int) -> Tensor:
    """Linear interpolation between cell centres along one axis; `positions` run from 0 to 1."""
    count = values.shape[axis]
    at = (positions * count - 0.5).clamp(0, count - 1)
    left = at.floor().long().clamp(max=max(count - 2, 0))
    right = (left + 1).clamp(max=count - 1)
    part = (at - left).reshape([-1 if i == axis else 1 for i in range(values.dim())])
    return values.index_select(axis, left) * (1 - part) + values.index_select(axis, right) * part


def measure_strength(scores: Tensor, between: tuple[float, float], *, signed: bool) -> Tensor:
    """Every score as a share of its colour limit, 0 to 1."""
    low, high = between
    if high <= low:
        return torch.zeros_like(scores)
    return ((scores.abs() / high) if signed else (scores - low) / (high - low)).clamp(0, 1)


def draw_contours(
    drawn: Image.Image, placed: Tensor, inside: Tensor, between: tuple[float, float], *, signed: bool
) -> None:
    """Lines of equal score at CONTOUR_LEVELS of each limit: black for, white against."""
    from contourpy import contour_generator

    low, high = between
    if high <= low:
        return
    start = 0.0 if signed else low
    levels = [(start + (high - start) * step, "black") for step in CONTOUR_LEVELS]
    levels += [(low * step, "white") for step in CONTOUR_LEVELS] if signed else []
    pen = ImageDraw.Draw(drawn)
    width = max(1, round(max(drawn.size) / 400))
    nothing = torch.tensor(float("nan"), dtype=placed.dtype)
    lines = contour_generator(z=placed.where(inside > 0, nothing).numpy())
    for level, colour in levels:
        for line in lines.lines(level):
            pen.line([(float(x), float(y)) for x, y in line], fill=colour, width=width)  # type: ignore[misc]


def draw_outline(drawn: Image.Image, view: ImageView) -> None:
    """Frame the model's view, unless it is the whole image."""
    if not is_partial_view(view, drawn.size):
        return
    box = [round(view.left), round(view.top), round(view.right) - 1, round(view.bottom) - 1]
    pen = ImageDraw.Draw(drawn)
    width = max(1, round(max(drawn.size) / 300))
    pen.rectangle(box, outline="white", width=width + 1)
    pen.rectangle([box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1], outline="black", width=width)


def is_partial_view(view: ImageView, size: tuple[int, int]) -> bool:
    """Whether the model sees only a part of the image."""
    return view.left > 0.5 or view.top > 0.5 or view.right < size[0] - 0.5 or view.bottom < size[1] - 0.5


def frame_view(image: Image.Image, view: ImageView | None) -> Image.Image:
    """The image with the model's view framed and the rest a little paler."""
    if view is None:
        return image
    box = (max(0, round(view.left)), max(0, round(view.top)), round(view.right), round(view.bottom))
    pale = Image.blend(image, Image.new("RGB", image.size, "white"), 0.45)
    pale.paste(image.crop(box), box[:2])
    draw_outline(pale, view)
    return pale


def paint_map(scores: Tensor, between: tuple[float, float], *, signed: bool) -> Image.Image:
    """A map [rows columns] alone, enlarged by an integer factor: every patch a square of one colour."""
    factor = max(1, MAP_SIDE // max(scores.shape))
    painted = paint_scores(scores, between, signed=signed)
    large = painted.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    return Image.fromarray(large.contiguous().numpy())


def shrink_image(image: Image.Image, max_side: int) -> Image.Image:
    """The image scaled down until its longer side has at most `max_side` pixels."""
    if max(image.size) <= max_side:
        return image
    factor = max_side / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return image.resize(size, Image.Resampling.LANCZOS)
