"""Colours of scores: nothing is white, more is darker, and a sign has a hue of its own.

Signed scores run from blue (against) over white (nothing) to orange (for), with equal limits on both sides of zero, so
that white is always zero. Scores without a sign run from white over purple to nearly black. Equal steps of a score are
equal steps to the eye: colours are mixed in Oklab (Ottosson 2020), where distance is about what a person sees. Both
maps can be told apart with any of the usual kinds of colour blindness; neither is red against green.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
AGAINST_COLOUR: Colour = (0x00, 0x72, 0xB2)
FOR_COLOUR: Colour = (0xBF, 0x4D, 0x00)
MISSING_COLOUR: Colour = (0xE8, 0xE8, 0xEC)  # there is no number
SIGNED_STOPS = (AGAINST_COLOUR, WHITE, FOR_COLOUR)
UNSIGNED_STOPS = (WHITE, (0xAC, 0x74, 0xC9), (0x3B, 0x0F, 0x5C))
TABLE_STEPS = 512  # of the tables that colours are looked up in


def find_limits(scores: Tensor, *, signed: bool, floor: float | None = None) -> tuple[float, float]:
    """The scores that get the first and the last colour; `floor` is where scores without a sign begin at the latest."""
    if not scores.numel():
        return (0.0, 0.0)
    low, high = scores.min().item(), scores.max().item()
    if signed:
        return (-max(-low, high), max(-low, high))
    return (low if floor is None else min(low, floor), high)


def find_robust_limits(scores: Tensor, *, signed: bool, percentile: float = 99.0) -> tuple[float, float]:
    """Limits that a few extreme scores do not move: a percentile of the magnitudes, or of both tails."""
    if not scores.numel():
        return (0.0, 0.0)
    flat = scores.flatten().double()
    if signed:
        high = torch.quantile(flat.abs(), percentile / 100).item() or flat.abs().max().item()
        return (-high, high)
    low, high = (torch.quantile(flat, share).item() for share in (1 - percentile / 100, percentile / 100))
    return (low, high) if high > low else find_limits(scores, signed=False)


def paint(scores: Tensor, between: tuple[float, float], *, signed: bool) -> Tensor:
    """The colour of every score, [*scores 3] in 0 to 255; beyond the limits, the colour at the limit."""
    low, high = between
    middle = 0.5 if signed else 0.0
    place = (scores.double() - low) / (high - low) if high > low else torch.full_like(scores, middle).double()
    return make_colour_table(signed)[(place.clamp(0, 1) * TABLE_STEPS).round().long()]


@cache
def make_colour_table(signed: bool) -> Tensor:
    """[STEPS + 1, 3] bytes, from the first colour to the last."""
    stops = torch.tensor(SIGNED_STOPS if signed else UNSIGNED_STOPS, dtype=torch.double) / 255
    along = torch.linspace(0, len(stops) - 1, TABLE_STEPS + 1, dtype=torch.double)
    left = along.floor().clamp(max=len(stops) - 2)
    share = (along - left)[:, None]
    seen = to_oklab(stops)
    mixed = seen[left.long()] * (1 - share) + seen[left.long() + 1] * share
    return (from_oklab(mixed).clamp(0, 1) * 255).round().to(torch.uint8)


def paint_array(values: Any, between: tuple[float, float], *, signed: bool) -> Any:
    """The same for an array: [*values 3] of bytes; NaN is light grey."""
    given = torch.as_tensor(values)
    painted = paint(given.nan_to_num(), between, signed=signed)
    painted[given.isnan()] = torch.tensor(MISSING_COLOUR, dtype=torch.uint8)
    return painted.numpy()


def to_hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


# --- what the eye sees ------------------------------------------------------------------------------------------------

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


def to_oklab(colours: Tensor) -> Tensor:
    """Lightness and two axes of hue, from colours in 0 to 1."""
    return (to_linear_rgb(colours) @ RGB_TO_LMS.T).pow(1 / 3) @ LMS_TO_OKLAB.T


def from_oklab(seen: Tensor) -> Tensor:
    light = (seen @ torch.linalg.inv(LMS_TO_OKLAB).T) ** 3 @ torch.linalg.inv(RGB_TO_LMS).T
    light = light.clamp(min=0)
    return torch.where(light <= 0.0031308, light * 12.92, 1.055 * light.clamp(min=1e-9) ** (1 / 2.4) - 0.055)


def to_linear_rgb(colours: Tensor) -> Tensor:
    """The light a screen gives for colours in 0 to 1."""
    return torch.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def choose_ink(background: Colour) -> Colour:
    """Black or white, whichever reads better there; the contrast is never below 4.5."""
    return max(BLACK, WHITE, key=lambda colour: contrast_ratio(colour, background))


def contrast_ratio(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Colour) -> float:
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (v / 255 for v in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
