"""Distributions split by class, as Jain & Wallace draw them: violins side by side in each bin, histograms of shares.

    draw_class_violins({"[0, 0.25)": {"negative": values, "positive": values}}, title="Permuted", xlabel="difference")
    draw_class_histograms({"negative": values, "positive": values}, between=(-1, 1), title="...", xlabel="tau")

One bin per row and one colour per class. The label of a bin has the number of its examples; a bin without examples
stays, empty, so that charts of several tasks can be compared.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from whyformer.show import chart_style as style
from whyformer.show.chart_style import REFERENCE_STYLE, Plotted, choose_series_colour, keep_finite, shorten_label
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW_VALUES = 5  # fewer are drawn as dots
ROOM = 0.84  # of a row that its violins fill


def draw_class_violins(
    bins: Mapping[str, Mapping[str, Plotted]],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    between: tuple[float, float] | None = None,
    note: str = "",
) -> Drawing:
    """One row per bin, one violin per class with its median and quartiles; between: the range of the x axis."""
    style.refuse_empty(bins, "bin")
    classes = list(dict.fromkeys(label for groups in bins.values() for label in groups))
    style.refuse_empty(classes, "class")
    size = (style.WIDTH, 1.1 + 0.75 * len(bins))
    with style.open_chart(size, title, xlabel, ylabel, note) as (figure, axes):
        height = ROOM / len(classes)
        ticks = []
        for row, (name, groups) in enumerate(bins.items()):
            values = {label: keep_finite(groups.get(label, ())) for label in classes}
            for index, label in enumerate(classes):
                middle = row + (index - (len(classes) - 1) / 2) * height
                draw_flat_violin(axes, values[label], middle, 0.95 * height, choose_series_colour(label, index))
            ticks.append(f"{shorten_label(name, 24)}\nn = {sum(v.size for v in values.values()):,}")
        for index, label in enumerate(classes):
            axes.plot([], [], "o", color=choose_series_colour(label, index), label=shorten_label(label, 24))
        axes.set_yticks(range(len(bins)), ticks)
        axes.set_ylim(len(bins) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        if between is not None:
            axes.set_xlim(*between)
        axes.grid(axis="x", color=LINE_COLOUR, linewidth=0.6)
        axes.set_axisbelow(True)
    summary = "; ".join(f"{name}: {style.format_medians(groups)}" for name, groups in bins.items())
    return Drawing(figure, f"{title or 'Distributions'}: {summary}.")


def draw_flat_violin(axes: "Axes", values: np.ndarray, middle: float, height: float, colour: str) -> None:
    """A horizontal violin; dots if there are few values, nothing if there are none."""
    if not values.size:
        return
    if values.size >= FEW_VALUES and np.ptp(values) > 0:
        drawn = axes.violinplot([values], [middle], widths=height, showextrema=False, orientation="horizontal")
        body = drawn["bodies"][0]  # type: ignore[index]
        body.set(facecolor=colour, alpha=0.35, linewidth=0)
    else:
        axes.plot(values, [middle] * values.size, "o", color=colour, markersize=3.5, alpha=0.6, clip_on=False)
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    axes.plot([lower, upper], [middle, middle], color=colour, linewidth=2.4, solid_capstyle="round")
    axes.plot([median], [middle], "o", color="white", markeredgecolor=colour, markersize=4.5, clip_on=False)


def draw_class_histograms(
    groups: Mapping[str, Plotted],
    *,
    between: tuple[float, float],
    bins: int = 30,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "share of the examples",
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """One histogram per class, each of shares that sum to 1, so that classes of different size can be compared."""
    style.refuse_empty(groups, "class")
    edges: Sequence[float] = np.linspace(*between, bins + 1).tolist()
    size = (style.WIDTH, 3.0)
    with style.open_chart(size, title, xlabel, ylabel, note) as (figure, axes):
        for index, (label, group) in enumerate(groups.items()):
            values, colour = keep_finite(group), choose_series_colour(label, index)
            shares = np.full(values.size, 1 / max(values.size, 1))
            name = shorten_label(f"{shorten_label(label, 24)} (n = {values.size:,})")
            axes.hist(values, edges, weights=shares, histtype="stepfilled", alpha=0.3, color=colour)
            axes.hist(values, edges, weights=shares, histtype="step", linewidth=1.4, color=colour, label=name)
            if values.size:
                axes.axvline(float(values.mean()), color=colour, linewidth=1.0, linestyle=(0, (1.5, 1.2)))
        if reference is not None:
            axes.axvline(reference, **REFERENCE_STYLE)
        axes.axvline(0, color=DIM_INK, linewidth=0.6)
        axes.set_xlim(*between)
    return Drawing(figure, f"{title or 'Histogram'}: {style.format_medians(groups)}.")
