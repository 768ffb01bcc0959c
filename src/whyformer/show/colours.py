"""Scores to colours: zero is white, larger is darker, and each sign has its own hue.

Signed scores run from blue (against) through white (zero) to orange (for), with limits symmetric about zero. Unsigned
scores run from white through purple to nearly black. Colours are mixed in Oklab (Ottosson 2020), a perceptually uniform
colour space, so equal steps of the score look like equal steps of colour. Both maps are distinguishable with the common
forms of colour blindness; neither sets red against green.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
AGAINST_COLOUR: Colour = (0x00, 0x72, 0xB2)
FOR_COLOUR: Colour = (0xBF, 0x4D, 0x00)
MISSING_COLOUR: Colour = (0xE8, 0xE8, 0xEC)  # NaN
SIGNED_STOPS = (AGAINST_COLOUR, WHITE, FOR_COLOUR)
UNSIGNED_STOPS = (WHITE, (0xAC, 0x74, 0xC9), (0x3B, 0x0F, 0x5C))
TABLE_STEPS = 512  # steps of the lookup tables


def find_limits(scores: Tensor, *, signed: bool, floor: float | None = None) -> tuple[float, float]:
    """The scores that get the first and the last colour; unsigned scores start at `floor` or below."""
    if not scores.numel():
        return (0.0, 0.0)
    low, high = scores.min().item(), scores.max().item()
    if signed:
        return (-max(-low, high), max(-low, high))
    return (low if floor is None else min(low, floor), high)


def find_robust_limits(scores: Tensor, *, signed: bool, percentile: float = 99.0) -> tuple[float, float]:
    """Limits that ignore a few extreme scores: a percentile of the magnitudes (signed) or of both tails (unsigned)."""
    if not scores.numel():
        return (0.0, 0.0)
    flat = scores.flatten().double()
    if signed:
        high = torch.quantile(flat.abs(), percentile / 100).item() or flat.abs().max().item()
        return (-high, high)
    low, high = (torch.quantile(flat, share).item() for share in (1 - percentile / 100, percentile / 100))
    return (low, high) if high > low else find_limits(scores, signed=False)


def paint_scores(scores: Tensor, between: tuple[float, float], *, signed: bool) -> Tensor:
    """The colour of every score, [*scores 3] in 0 to 255; scores beyond the limits are clipped."""
    low, high = between
    middle = 0.5 if signed else 0.0
    index = (scores.double() - low) / (high - low) if high > low else torch.full_like(scores, middle).double()
    return make_colour_table(signed)[(index.clamp(0, 1) * TABLE_STEPS).round().long()]


@cache
def make_colour_table(signed: bool) -> Tensor:
    """The colours of all scores between the limits, [TABLE_STEPS + 1, 3] bytes."""
    return mix_stops(SIGNED_STOPS if signed else UNSIGNED_STOPS)


def mix_stops(stops: Sequence[Colour]) -> Tensor:
    """A gradient from the first stop to the last, in even perceptual steps: [TABLE_STEPS + 1, 3] bytes."""
    along = torch.linspace(0, len(stops) - 1, TABLE_STEPS + 1, dtype=torch.double)
    left = along.floor().clamp(max=len(stops) - 2)
    share = (along - left)[:, None]
    # Lightness and two hue axes, from sRGB colours in 0 to 1.
    oklab = (to_linear_rgb(torch.tensor(stops, dtype=torch.double) / 255) @ RGB_TO_LMS.T).pow(1 / 3) @ LMS_TO_OKLAB.T
    mixed = oklab[left.long()] * (1 - share) + oklab[left.long() + 1] * share
    return (from_oklab(mixed).clamp(0, 1) * 255).round().to(torch.uint8)


def paint_array(values: np.ndarray, between: tuple[float, float], *, signed: bool) -> np.ndarray:
    """`paint_scores` for an array: [*values 3] bytes; NaN is light grey."""
    given = torch.as_tensor(values)
    painted = paint_scores(given.nan_to_num(), between, signed=signed)
    painted[given.isnan()] = torch.tensor(MISSING_COLOUR, dtype=torch.uint8)
    return painted.numpy()


def to_hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


# --- colour spaces and contrast ---------------------------------------------------------------------------------------

RGB_TO_LMS = torch.tensor(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    dtype=torch.double,
)
LMS_TO_OKLAB = torch.tensor(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ],
    dtype=torch.double,
)


def from_oklab(oklab: Tensor) -> Tensor:
    """sRGB colours in 0 to 1 (not clipped above)."""
    light = (oklab @ torch.linalg.inv(LMS_TO_OKLAB).T) ** 3 @ torch.linalg.inv(RGB_TO_LMS).T
    light = light.clamp(min=0)
    return torch.where(light <= 0.0031308, light * 12.92, 1.055 * light.clamp(min=1e-9) ** (1 / 2.4) - 0.055)


def to_linear_rgb(colours: Tensor) -> Tensor:
    """sRGB colours in 0 to 1 without their gamma."""
    return torch.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def choose_ink(background: Colour) -> Colour:
    """Black or white, whichever has the higher contrast (always at least 4.5)."""
    return max(BLACK, WHITE, key=lambda colour: compute_contrast(colour, background))


def compute_contrast(colour: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""
    light, dark = sorted((compute_luminance(colour), compute_luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def compute_luminance(colour: Colour) -> float:
    """The relative luminance of WCAG 2, from 0 to 1."""
    shares = [value / 255 for value in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
