r"""Copies: the same pixels in many items of a class, at any place.

A small mark that moves is cut by the patches at other phases in each item, so its states differ more than its pixels
do. A window around a relevant patch of one item is a *template*; in every other image it is laid where it fits best,

$$ d = \min_{place} \overline{(image - template)^2} \,/\, \sigma^2 $$

with the variance of all pixels below (one convolution for all places). How well it fits by chance is measured with the
same freedom on items of other classes: their 10 % quantile of d is *usual*. An item shows the template if its d is
under half of the usual one, and the uniformity of the copies is

$$ u = 1 - \overline{d} \,/\, usual. $$

The eyes of animals fit each other little better than the eyes of another class; the copies of a logo fit exactly.
Otherwise than with matched filters (Turin 1960), the distance is not divided by the contrast of the window: a plain
coloured frame has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from whyformer._plain.statistics import bootstrap
from whyformer._runs.parts import BulkRow
from whyformer._summary.groups import MIN_ITEMS, MIN_SHARE, SHARED

WINDOWS = (8, 16)  # so many fit side by side into an image
DONORS, TOP_WINDOWS = 16, 3  # items that templates are taken from, and windows of each
SEARCHED = 64  # items of a class, and as many of the others, which choose the templates
EXAMINED = 200  # items of other classes that a chosen template is laid on
BY_CHANCE = 0.1  # quantile of the best fits in other classes
COPIED = 0.1  # of the median: so good a fit in another class is a copy as well, not chance
NEAR = 0.5  # of the usual distance
KEPT_TEMPLATES = 2  # of a class
BATCH = 8  # images


@dataclass(frozen=True, eq=False)
class Template:
    """A window of one item of a class, which fits other items of the class."""

    name: str  # of the class
    window: Tensor  # [channel side side]
    usual: float  # mean squared difference of the best fits in other classes
    uniformity: tuple[float, float, float]  # with its 95 % interval

    def locate(self, images: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """[item] distances divided by the usual one, and [item 2] the top left corners of the best fits."""
        distances, corners = fit_windows(images, self.window[None])
        return distances[0] / max(self.usual, 1e-12), corners[0]


def find_templates(name: str, rows: Sequence[BulkRow], own: Tensor, others: Tensor, donors: int) -> list[Template]:
    """The templates that many items of a class show, the best first; the images are shrunk ones, rows those of own."""
    variance = float(own.float().var())
    if len(own) < MIN_ITEMS or len(others) < MIN_ITEMS or variance <= 0:
        return []
    found: list[tuple[float, np.ndarray, Template]] = []
    for parts in WINDOWS:
        windows, sources = cut_windows(rows[:donors], own, round(min(own.shape[-2:]) / parts))
        inside, _ = fit_windows(own, windows)
        outside, _ = fit_windows(others, windows)
        for window, source, fits, elsewhere in zip(windows, sources, inside, outside, strict=True):
            usual = measure_chance(elsewhere)
            shown = fits < NEAR * usual
            shown[source] = True
            if usual <= 1e-3 * variance or shown.sum() < max(MIN_ITEMS, MIN_SHARE * len(own)):
                continue
            ratios = np.delete(fits, source)[np.delete(shown, source)] / usual
            value = 1 - float(ratios.mean())
            found.append((value * np.sqrt(shown.sum()), shown, Template(name, window, usual, (value, value, value))))
    chosen: list[tuple[np.ndarray, Template]] = []
    for _, shown, template in sorted(found, key=lambda one: -round(one[0], 6)):
        if all((shown & other).sum() < SHARED * (shown | other).sum() for other, _ in chosen):
            chosen.append((shown, template))
    return [add_interval(template, own) for _, template in chosen[:KEPT_TEMPLATES]]


def add_interval(template: Template, own: Tensor) -> Template:
    ratios, _ = template.locate(own)
    shown = np.sort(ratios[ratios < NEAR])[1:]  # without the donor of the window
    _, low, high = bootstrap(1 - shown, 0)
    return Template(template.name, template.window, template.usual, (template.uniformity[0], low, high))


def measure_chance(distances: np.ndarray) -> float:
    """The usual best fit in items of other classes, without those that hold a copy."""
    by_chance = distances[distances >= COPIED * np.median(distances)]
    return float(np.quantile(by_chance, BY_CHANCE))


def cut_windows(rows: Sequence[BulkRow], images: Tensor, side: int) -> tuple[Tensor, list[int]]:
    """[window channel side side]: around the most relevant patches of these items; and the item of each."""
    height, width = images.shape[-2:]
    windows, sources = [], []
    for item, row in enumerate(rows):
        assert row.scores is not None and row.grid is not None
        for patch in np.argsort(-row.scores, kind="stable")[:TOP_WINDOWS]:
            down, across = divmod(int(patch), row.grid[1])
            top, left = (
                place_window(*one) for one in ((down, row.grid[0], height, side), (across, row.grid[1], width, side))
            )
            windows.append(images[item, :, top : top + side, left : left + side])
            sources.append(item)
    return torch.stack(windows), sources


def place_window(patch: int, patches: int, size: int, side: int) -> int:
    """The first pixel of a window around a patch; beside the edge of the image it touches the edge, as frames do."""
    if patch in (0, patches - 1):
        return 0 if patch == 0 else size - side
    return min(max(round((patch + 0.5) * size / patches - side / 2), 0), size - side)


def fit_windows(images: Tensor, windows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """[window item]: the least mean squared difference over all places; [window item 2]: its top left corner."""
    windows, side = windows.float(), windows.shape[-1]
    count, energy = windows[0].numel(), windows.square().mean((1, 2, 3))[:, None, None]
    best, places = [], []
    for some in images.split(BATCH):
        some = some.float()
        squares = functional.avg_pool2d(some.square().mean(1, keepdim=True), side, 1)
        values, at = (squares - 2 / count * functional.conv2d(some, windows) + energy).flatten(2).min(2)
        best.append(values.clamp(min=0))
        places.append(at)
    columns = images.shape[-1] - side + 1
    corners = torch.stack([torch.cat(places) // columns, torch.cat(places) % columns], -1)
    return torch.cat(best).T.double().numpy(), corners.transpose(0, 1).numpy()
