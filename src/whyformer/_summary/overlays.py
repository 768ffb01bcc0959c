r"""Overlays: the same faint drawing over many images of a class, such as a watermark, at one position.

What is below a transparent mark differs from image to image, so neither its pixels nor the model's states are alike.
What is added to them is, and the mean over many images keeps it: details (an image minus its local mean) average to
nothing where images differ, and to the drawing where they share one. With the details $h$ of each image,

$$ t = \overline{h_{class}} - \overline{h_{others}} $$

is kept where it is at least LEAST_Z standard errors from zero. How strongly an image shows it is the coefficient
$a = \langle h, t \rangle / \langle t, t \rangle$ (a matched filter, Turin 1960), about 1 with the drawing, 0 without.
Each image is measured with the drawing of the other half of the images, so that none finds itself in it. The images
that show it are those above the threshold that splits all images best (Otsu 1979), and the drawing is made anew from
them. Its uniformity is $u = 1 / (1 + v)$ with the squared coefficient of variation $v$ of their coefficients: a drawing
that is the same everywhere has coefficients near 1, an average of different things has them all over the place.

**Hiding** subtracts the drawing, **inserting** adds it to images of other classes; the control subtracts or adds, at
the same pixels and as strongly, the difference of the means of two halves of the other images.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.ndimage import binary_closing, uniform_filter
from torch import Tensor
from torch.nn import functional

from whyformer._plain.statistics import bootstrap
from whyformer._summary.finding import AnswerChange, Effect, measure_effect
from whyformer._summary.groups import MIN_ITEMS, MIN_SHARE, split_values
from whyformer._summary.inputs import InputReader, compare_right
from whyformer._summary.marks import Asker, ImageSet

DETAIL = 8  # details are smaller than this part of an image
LEAST_Z = 4.0  # standard errors
DRAWN_FROM = 300  # images of a class
BATCH = 64  # images
ROUNDS = 3  # of finding the drawing and the images that show it
OVERLAY_LIMIT = 0.8  # uniformity that accuses


@dataclass(frozen=True, eq=False)
class Overlay:
    """A drawing that many images of a class have in common."""

    name: str  # of the class
    drawing: np.ndarray  # [channel height width], zero outside of the mark
    control: np.ndarray  # as strong, of the same pixels, from other images
    likeness: np.ndarray  # [image]: its coefficient, of the class and of others
    threshold: float
    uniformity: tuple[float, float, float]  # with its 95 % interval

    @property
    def mask(self) -> np.ndarray:
        """[height width] of bool: the drawing with what is between its lines."""
        side = max(1, self.drawing.shape[-1] // 32)
        inked = np.pad(np.abs(self.drawing).sum(0) > 0, 2 * side)
        closed = binary_closing(inked, np.ones((3, 3), dtype=bool), side)
        return np.asarray(closed[2 * side : -2 * side, 2 * side : -2 * side])

    def shift(self, pixels: Tensor, by: float, *, control: bool = False) -> Tensor:
        """The images with so many times the drawing, or its control, added to each."""
        drawn = torch.from_numpy(self.control if control else self.drawing)[None].to(pixels)
        return pixels + by * functional.interpolate(
            drawn, size=tuple(pixels.shape[-2:]), mode="bilinear", align_corners=False
        )


def find_overlay(name: str, images: Tensor, is_own: np.ndarray) -> Overlay | None:
    """The drawing that many images of a class share and others do not; None if there is none.

    images: [image channel height width], shrunk ones; is_own: [image] of bool.
    """
    used = ~is_own | (np.cumsum(is_own) <= DRAWN_FROM)
    found = draw_overlay(name, take_details(images[np.flatnonzero(used)].float().numpy()), is_own[used])
    if found is None or used.all():
        return found
    likeness = np.concatenate(
        [measure_coefficients(take_details(some.float().numpy()), found.drawing) for some in images.split(BATCH)]
    )
    likeness[used] = found.likeness
    return replace(found, likeness=likeness)


def draw_overlay(name: str, details: np.ndarray, is_own: np.ndarray) -> Overlay | None:
    """The same from the details of the images."""
    own, others = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    if len(own) < 2 * MIN_ITEMS or len(others) < 2 * MIN_ITEMS:
        return None
    shown = is_own.copy()
    half = np.zeros(len(details), dtype=bool)
    half[own[::2]] = True
    likeness, threshold = np.zeros(len(details)), 0.0
    for _ in range(ROUNDS):
        for drawn_from, measured in ((half, ~half), (~half & is_own, half)):
            drawing = draw_difference(details[shown & drawn_from], details[others])
            if not drawing.any():
                return None
            likeness[measured] = measure_coefficients(details[measured], drawing)
        threshold = split_values(likeness)
        shown = is_own & (likeness > threshold)
        if min((shown & half).sum(), (shown & ~half).sum()) * 2 < max(MIN_ITEMS, MIN_SHARE * len(own)):
            return None
    drawing = draw_difference(details[shown], details[others])
    spread = np.square(likeness[shown] / likeness[shown].mean() - 1)
    value, low, high = bootstrap(spread, 0)
    control = details[others[::2]].mean(0) - details[others[1::2]].mean(0)
    control = np.where(drawing != 0, control, 0)
    control *= np.sqrt(np.square(drawing).sum() / max(float(np.square(control).sum()), 1e-12))
    uniformity = (1 / (1 + value), 1 / (1 + high), 1 / (1 + low))
    return Overlay(name, drawing, control, likeness, threshold, uniformity) if drawing.any() else None


def take_details(images: np.ndarray) -> np.ndarray:
    """Images [image channel height width] minus their local means."""
    side = max(3, images.shape[-1] // DETAIL)
    return np.asarray(images - uniform_filter(images, (0, 0, side, side), mode="nearest"))


def draw_difference(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[channel height width]: the difference of the means, zero where it is not significant."""
    difference = own.mean(0) - others.mean(0)
    noise = own.var(0) / max(len(own), 1) + others.var(0) / len(others) + 1e-6
    is_certain = np.sqrt((np.square(difference) / noise).mean(0)) > LEAST_Z
    return np.asarray(difference * is_certain)


def measure_coefficients(details: np.ndarray, drawing: np.ndarray) -> np.ndarray:
    """[image]: how many times each has the drawing."""
    return np.asarray((details * drawing).sum((1, 2, 3)) / np.square(drawing).sum())


def try_erasing(
    asker: Asker, overlay: Overlay, inside: ImageSet, reader: InputReader, seed: int
) -> tuple[Effect, AnswerChange]:
    """The fall of the probability without the drawing, beside that without its control."""
    before = asker.ask(inside)
    after, predicted = asker.run(overlay.shift(inside.pixels, -1))
    control, _ = asker.run(overlay.shift(inside.pixels, -1, control=True))
    right = compare_right(inside.rows, predicted, reader)
    told = AnswerChange(len(before), float(before.mean()), float(after.mean()), *right, area=float(overlay.mask.mean()))
    return measure_effect(before - after, before - control, seed), told


def try_drawing(asker: Asker, overlay: Overlay, recipients: ImageSet, seed: int) -> tuple[Effect, AnswerChange]:
    """The rise of the probability in images of other classes with the drawing, beside that with its control."""
    before = asker.ask(recipients)
    after, _ = asker.run(overlay.shift(recipients.pixels, 1))
    control, _ = asker.run(overlay.shift(recipients.pixels, 1, control=True))
    told = AnswerChange(len(before), float(before.mean()), float(after.mean()), area=float(overlay.mask.mean()))
    return measure_effect(after - before, control - before, seed), told
