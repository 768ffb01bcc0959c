"""Results in axes of matplotlib, for figures of one's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from whyformer.show.drawing import PALETTE, apply_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOR, AGAINST = PALETTE[1], PALETTE[0]
MAX_BARS = 24


def find_axes(ax: "Axes | None") -> "Axes":
    """These axes, or the current ones of pyplot."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.gca()


def show_image(axes: "Axes", image: Image.Image) -> None:
    """An image without ticks."""
    with apply_style():
        axes.imshow(np.asarray(image.convert("RGB")))
        axes.set_axis_off()


def show_bars(axes: "Axes", pairs: Sequence[tuple[str, float]]) -> None:
    """Names with a score each, from top to bottom, orange above zero and blue below; the first ones of many."""
    names, values = [name for name, _ in pairs[:MAX_BARS]], [score for _, score in pairs[:MAX_BARS]]
    with apply_style():
        places = list(range(len(values)))
        axes.barh(places, values, color=[FOR if value >= 0 else AGAINST for value in values])
        name_rows(axes, names)
        axes.axvline(0, color="#8f8f99", linewidth=0.6)
        axes.set_xlabel("score")


def show_means(axes: "Axes", lines: Sequence[tuple[str, float, float, float]]) -> None:
    """Names with a mean and the ends of its interval, from top to bottom; those without a mean are left out."""
    known = [line for line in lines if line[1] == line[1]]
    means = [mean for _, mean, _, _ in known]
    ends = [[mean - low for _, mean, low, _ in known], [high - mean for _, mean, _, high in known]]
    with apply_style():
        places = list(range(len(known)))
        axes.errorbar(means, places, xerr=np.nan_to_num(np.clip(ends, 0, None)), fmt="o", color=FOR, capsize=3)
        name_rows(axes, [name for name, *_ in known])
        axes.set_xlabel("mean, 95 % interval")


def name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Names beside rows at 0, 1, ..., the first one on top."""
    axes.set_yticks(list(range(len(names))), labels=list(names))
    axes.invert_yaxis()
