"""Colours of scores: nothing is white, more is darker, and a sign has a hue of its own.

Signed scores run from blue (against) over white (nothing) to orange (for), with equal limits on both sides of zero, so
that white is always zero. Scores without a sign run from white to dark purple. Both can be told apart with any of the
usual kinds of colour blindness; neither is red against green.
"""

import torch
from torch import Tensor

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
AGAINST: Colour = (0x00, 0x72, 0xB2)
FOR: Colour = (0xD5, 0x5E, 0x00)
SIGNED = (AGAINST, WHITE, FOR)
UNSIGNED = (WHITE, (0xB2, 0x7F, 0xCC), (0x3B, 0x0F, 0x5C))


def limits(scores: Tensor, *, signed: bool, floor: float | None = None) -> tuple[float, float]:
    """The scores that get the first and the last colour; `floor` is where scores without a sign begin at the latest."""
    if not scores.numel():
        return (0.0, 0.0)
    low, high = scores.min().item(), scores.max().item()
    if signed:
        return (-max(-low, high), max(-low, high))
    return (low if floor is None else min(low, floor), high)


def paint(scores: Tensor, between: tuple[float, float], *, signed: bool) -> Tensor:
    """The colour of every score, [*scores 3] in 0 to 255; beyond the limits, the colour at the limit."""
    low, high = between
    middle = 0.5 if signed else 0.0
    place = (scores.double() - low) / (high - low) if high > low else torch.full_like(scores, middle).double()
    stops = torch.tensor(SIGNED if signed else UNSIGNED, dtype=torch.double)
    along = place.clamp(0, 1) * (len(stops) - 1)
    left = along.floor().clamp(max=len(stops) - 2)
    share = (along - left)[..., None]
    mixed = stops[left.long()] * (1 - share) + stops[left.long() + 1] * share
    return mixed.round().to(torch.uint8)


def ink(background: Colour) -> Colour:
    """Black or white, whichever reads better there; the contrast is never below 4.5."""
    return max(BLACK, WHITE, key=lambda colour: contrast(colour, background))


def contrast(one: Colour, other: Colour) -> float:
    """The contrast ratio of WCAG 2, from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Colour) -> float:
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (v / 255 for v in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
