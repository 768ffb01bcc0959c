"""Score maps as pictures: every patch a square of one colour, nothing smoothed."""

from collections.abc import Sequence
from io import BytesIO

from PIL import Image
from torch import Tensor

from whyformer.show.colours import limits, paint

SIDE = 448  # a map is enlarged until it is about this wide


def picture(scores: Tensor, *, signed: bool) -> Image.Image:
    """One map [rows columns], enlarged by a whole number; its own smallest and largest score are the limits."""
    factor = max(1, SIDE // max(scores.shape))
    painted = paint(scores, limits(scores, signed=signed), signed=signed)
    large = painted.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    return Image.fromarray(large.contiguous().numpy())


def png(maps: Sequence[Tensor], *, signed: bool) -> bytes:
    """The maps side by side, as a PNG file."""
    pictures = [picture(one, signed=signed) for one in maps]
    gap = 16
    width = sum(p.width for p in pictures) + gap * (len(pictures) - 1)
    sheet = Image.new("RGB", (width, max(p.height for p in pictures)), "white")
    left = 0
    for one in pictures:
        sheet.paste(one, (left, 0))
        left += one.width + gap
    file = BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()
