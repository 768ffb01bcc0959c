"""Charts: curves with bands, rankings with intervals, matrices, distributions. Plain arrays in, a Drawing out.

    curves = {"rollout": (x, mean, low, high)}
    drawing = draw_curves(curves, title="Deletion", xlabel="share removed", ylabel="probability")
    drawing.save("deletion.svg")    # also .pdf and .png; in a page: report.embed_drawing(drawing)

Colours are distinguishable with the common forms of colour blindness, and lines also differ in their dashes. A series
called "chance" or "random" is grey and dashed everywhere. NaN is left out, never drawn as 0.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from whyformer.errors import InputError
from whyformer.show import chart_style as style
from whyformer.show.chart_style import REFERENCE_STYLE, Plotted, SeriesStyle, as_array, keep_finite, shorten_label
from whyformer.show.colours import choose_ink, paint_array, to_hex
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, PALETTE, Drawing

__all__ = [
    "Drawing", "draw_curves", "draw_densities", "draw_histogram", "draw_matrix", "draw_ranking", "draw_scatter",
    "draw_violins",
]  # fmt: skip

Curve = tuple[Plotted, Plotted, Plotted | None, Plotted | None]  # x, mean, low, high; low and high may be None


def draw_curves(
    series: Mapping[str, Curve],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    note: str = "",
    percent: bool = False,
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Drawing:
    """One line per series, with a band between low and high; percent: label an x axis of shares in percent.

    styles: how each series looks, from assign_styles; by default the colours of the palette in turn.
    """
    from matplotlib.ticker import MaxNLocator

    style.refuse_empty(series, "curve")
    size = (style.WIDTH, 3.6)
    with style.open_chart(size, title, xlabel, ylabel, note) as (figure, axes):
        for index, (label, (x, mean, low, high)) in enumerate(series.items()):
            x, mean = as_array(x), as_array(mean)
            if x.shape != mean.shape:
                raise InputError(f"Curve {label!r} has {x.size} x values and {mean.size} y values.")
            line = style.choose_line_style(label, index) if styles is None else styles[label].line
            axes.plot(x, mean, label=shorten_label(label), linewidth=1.6, **line)
            if low is not None and high is not None:
                axes.fill_between(x, as_array(low), as_array(high), color=line["color"], alpha=0.15, linewidth=0)
        if percent:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        elif all(style.is_whole(x) for x, *_ in series.values()):  # layers and steps have no halves
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(axis="y", color=LINE_COLOUR, linewidth=0.6)
    ends = ", ".join(f"{label} ends at {style.find_last_finite(mean):.3g}" for label, (_, mean, _, _) in series.items())
    return Drawing(figure, f"{title or ylabel or 'Curves'}: {ends}.")


def draw_ranking(
    rows: Sequence[tuple[str, float, float, float]],
    *,
    title: str = "",
    xlabel: str = "",
    better: str = "higher",
    reference: float | None = None,
    note: str = "",
    styles: Mapping[str, SeriesStyle] | None = None,
) -> Drawing:
    """Rows of (label, value, low, high) as dots with intervals, the best on top and NaN ("undefined") at the bottom.

    reference: a value to mark with a vertical line; by default that of the row called chance, if there is one.
    styles: how each row looks, from assign_styles; by default all but chance have one colour.
    """
    style.refuse_empty(rows, "row")
    sign = -1 if better == "higher" else 1
    ordered = sorted(rows, key=lambda row: (row[1] != row[1], sign * row[1] if row[1] == row[1] else 0))
    chance = next((value for label, value, _, _ in rows if style.is_chance_label(label)), None)
    reference = chance if reference is None else reference
    size = (4.6 + style.estimate_label_width([label for label, *_ in rows]), 0.9 + 0.28 * len(rows))
    xlabel = f"{xlabel} ({better} is better)" if xlabel else f"{better} is better"
    with style.open_chart(size, title, xlabel, "", note, legend=False) as (figure, axes):
        if reference is not None and reference == reference:
            axes.axvline(reference, zorder=1, **REFERENCE_STYLE)
        for index, (label, value, low, high) in enumerate(ordered):
            plain = DIM_INK if style.is_chance_label(label) else PALETTE[0]
            colour, marker = (plain, "o") if styles is None else (styles[label].colour, styles[label].marker)
            if value != value:
                axes.text(0.01, index, "undefined", color=DIM_INK, va="center", transform=axes.get_yaxis_transform())
                continue
            axes.plot([low, high], [index, index], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="round")
            axes.plot([value], [index], marker, color=colour, markersize=5.5, mew=1.5)
        axes.set_yticks(range(len(ordered)), [shorten_label(label) for label, *_ in ordered])
        axes.set_ylim(len(ordered) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=LINE_COLOUR, linewidth=0.6)
    summary = "; ".join(f"{label} {value:.3g} ({low:.3g} to {high:.3g})" for label, value, low, high in ordered)
    return Drawing(figure, f"{title or 'Ranking'}, best first: {summary}.")


def draw_matrix(
    labels: Sequence[str],
    values: Plotted,
    *,
    columns: Sequence[str] | None = None,
    title: str = "",
    between: tuple[float, float] = (-1.0, 1.0),
    signed: bool = True,
    digits: int = 2,
    note: str = "",
) -> Drawing:
    """A heat map with its numbers; without `columns`, the labels name rows and columns."""
    values = as_array(values)
    columns = labels if columns is None else columns
    if values.shape != (len(labels), len(columns)):
        raise InputError(f"A {values.shape} matrix does not fit {len(labels)} rows and {len(columns)} columns.")
    style.refuse_empty(labels, "row")
    style.refuse_empty(columns, "column")
    slanted = style.estimate_label_width(columns, 28)
    width = 0.5 + style.estimate_label_width(labels, 28) + 0.42 * len(columns) + slanted
    size = (width, 0.8 + 0.8 * slanted + 0.3 * len(labels))
    with style.open_chart(size, "", "", "", note, legend=False) as (figure, axes):
        colours = paint_array(values, between, signed=signed)
        style.draw_cells(axes, colours, 1.2)
        for row, column in np.ndindex(*values.shape):
            value = values[row, column]
            text = "–" if value != value else f"{value:z.{digits}f}"
            colour = to_hex(choose_ink(tuple(colours[row, column].tolist())))
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(columns)), [shorten_label(c, 28) for c in columns], rotation=40, ha="left")
        axes.set_yticks(range(len(labels)), [shorten_label(label, 28) for label in labels])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.tick_params(which="minor", length=0, top=False)
        if title:
            figure.suptitle(shorten_label(title, 80), fontsize=10, fontweight="bold", x=0.01, ha="left")
    return Drawing(figure, f"{title or 'Matrix'}: {len(labels)} by {len(columns)}.")


def draw_violins(
    groups: Mapping[str, Plotted], *, title: str = "", ylabel: str = "", reference: float | None = None, note: str = ""
) -> Drawing:
    """The distribution of each group, with its median and quartiles; groups of fewer than 5 values are dots."""
    style.refuse_empty(groups, "group")
    size = (max(3.2, 1.2 + 0.75 * len(groups)), 3.0 + 0.5 * style.estimate_label_width(groups, 24))
    with style.open_chart(size, title, "", ylabel, note, legend=False) as (figure, axes):
        if reference is not None:
            axes.axhline(reference, **REFERENCE_STYLE)
        for index, (label, group) in enumerate(groups.items()):
            values = keep_finite(group)
            colour = style.choose_series_colour(label, index)
            if values.size >= 5 and np.ptp(values) > 0:
                body = axes.violinplot([values], [index], widths=0.8, showextrema=False)["bodies"][0]  # type: ignore[index]
                body.set(facecolor=colour, alpha=0.35, linewidth=0)
            else:
                axes.plot([index] * values.size, values, "o", color=colour, markersize=4, alpha=0.6)
            if values.size:
                lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
                axes.plot([index, index], [lower, upper], color=colour, linewidth=3, solid_capstyle="round")
                axes.plot([index], [median], "o", color="white", markeredgecolor=colour, markersize=5)
        slant = {"rotation": 30, "ha": "right"} if len(groups) > 4 else {}
        axes.set_xticks(range(len(groups)), [shorten_label(label, 24) for label in groups], **slant)  # type: ignore[arg-type]
        axes.grid(axis="y", color=LINE_COLOUR, linewidth=0.6)
        axes.set_axisbelow(True)
    return Drawing(figure, f"{title or 'Distributions'}: {style.format_medians(groups)}.")


def draw_histogram(
    groups: Mapping[str, Plotted] | Plotted,
    *,
    bins: int = 30,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "examples",
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """One histogram per group, all with the same bins; a plain array is one unnamed group."""
    from matplotlib.ticker import MaxNLocator

    named: Mapping[str, Plotted] = groups if isinstance(groups, Mapping) else {"": groups}
    style.refuse_empty(named, "group")
    finite = {label: keep_finite(values) for label, values in named.items()}
    pooled = np.concatenate(list(finite.values()))
    edges = np.histogram_bin_edges(pooled if pooled.size else np.zeros(1), bins=bins).tolist()
    size = (style.WIDTH, 3.2)
    with style.open_chart(size, title, xlabel, ylabel, note, legend=any(finite)) as (figure, axes):
        for index, (label, values) in enumerate(finite.items()):
            colour = style.choose_series_colour(label, index)
            axes.hist(values, edges, histtype="stepfilled", alpha=0.3, color=colour)
            axes.hist(values, edges, histtype="step", color=colour, linewidth=1.4, label=shorten_label(label))
        if reference is not None:
            axes.axvline(reference, **REFERENCE_STYLE)
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return Drawing(figure, f"{title or 'Histogram'}: {style.format_medians(named)}.")


def draw_densities(
    groups: Mapping[str, Plotted],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "density",
    between: tuple[float, float] | None = None,
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """A kernel density estimate per group (normal kernel, Silverman's bandwidth); between: the range of the x axis."""
    style.refuse_empty(groups, "group")
    finite = {label: keep_finite(values) for label, values in groups.items()}
    pooled = np.concatenate(list(finite.values()))
    low, high = between or ((pooled.min(), pooled.max()) if pooled.size else (0.0, 1.0))
    margin = 0.0 if between else 0.08 * (high - low) or 0.5
    x = np.linspace(low - margin, high + margin, 256)
    names = {label: f"{shorten_label(label, 56)} (n = {values.size})" for label, values in finite.items()}
    size = (style.WIDTH, 3.2)
    with style.open_chart(size, title, xlabel, ylabel, note) as (figure, axes):
        for index, (label, values) in enumerate(finite.items()):
            line, y = style.choose_line_style(label, index), style.estimate_density(values, x)
            axes.plot(x, y, label=names[label], linewidth=1.6, **line)
            axes.fill_between(x, 0, y, color=line["color"], alpha=0.15, linewidth=0)
        if reference is not None:
            axes.axvline(reference, **REFERENCE_STYLE)
        axes.set_ylim(bottom=0)
    return Drawing(figure, f"{title or 'Densities'}: {style.format_medians(groups)}.")


def draw_scatter(
    groups: Mapping[str, tuple[Plotted, Plotted]],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    diagonal: bool = False,
    note: str = "",
) -> Drawing:
    """One dot per pair of values; diagonal: also draw the line x = y."""
    style.refuse_empty(groups, "group")
    size = (style.WIDTH, 3.8)
    with style.open_chart(size, title, xlabel, ylabel, note, legend=any(groups)) as (figure, axes):
        for index, (label, (x, y)) in enumerate(groups.items()):
            colour = style.choose_series_colour(label, index)
            dots = axes.plot(as_array(x), as_array(y), "o", color=colour, label=shorten_label(label))[0]
            dots.set(markersize=4, alpha=0.6, mew=0)
        if diagonal:
            axes.axline((0, 0), slope=1, **REFERENCE_STYLE)
        axes.grid(color=LINE_COLOUR, linewidth=0.6)
        axes.set_axisbelow(True)
    counts = ", ".join(f"{label or 'points'}: {as_array(x).size}" for label, (x, _) in groups.items())
    return Drawing(figure, f"{title or 'Scatter'}: {counts}.")
