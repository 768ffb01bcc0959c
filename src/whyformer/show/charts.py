"""Charts: curves with bands, rankings with intervals, matrices, distributions. Plain arrays in, a Drawing out.

    drawing = curves({"rollout": (x, mean, low, high)}, title="Deletion", xlabel="share removed", ylabel="probability")
    drawing.svg(); drawing.png(); drawing.pdf(); drawing.save("deletion.svg"); drawing.html()   # the last for a page

Colours can be told apart with any of the usual kinds of colour blindness, and lines also differ in their dashes.
Whatever is called chance is grey and dashed everywhere: the line to beat. NaN is left out, never drawn as 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import InputError
from whyformer.show.colours import choose_ink, paint_array, to_hex
from whyformer.show.drawing import DIM_INK, INK, LINE_COLOUR, PALETTE, Drawing, apply_style, make_figure
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
CHANCE_NAMES = ("chance", "random")
Curve = tuple[Any, Any, Any, Any]  # x, mean, low, high; low and high may be None


def draw_curves(
    series: Mapping[str, Curve],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    note: str = "",
    percent: bool = False,
) -> Drawing:
    """One line a series with its band; `percent` writes the horizontal axis, 0 to 1, in percent."""
    refuse_empty(series, "curve")
    with apply_style():
        made = make_figure(4.6 + estimate_label_width(series), 3.6)
        axes = made.subplots()
        for place, (label, (x, mean, low, high)) in enumerate(series.items()):
            x, mean = as_array(x), as_array(mean)
            if x.shape != mean.shape:
                raise InputError(f"The curve {label!r} has {x.size} places and {mean.size} values.")
            look = choose_line_style(label, place)
            axes.plot(x, mean, label=shorten_label(label), linewidth=1.6, **look)
            if low is not None and high is not None:
                axes.fill_between(x, as_array(low), as_array(high), color=look["color"], alpha=0.15, linewidth=0)
        if percent:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        label_axes(axes, title, xlabel, ylabel)
        axes.grid(axis="y", color=LINE_COLOUR, linewidth=0.6)
        made.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        add_note(made, note)
        said = ", ".join(f"{label} ends at {find_last_finite(mean):.3g}" for label, (_, mean, _, _) in series.items())
        return Drawing(made, f"{title or ylabel or 'Curves'}: {said}.")


def draw_ranking(
    rows: Sequence[tuple[str, float, float, float]],
    *,
    title: str = "",
    xlabel: str = "",
    better: str = "higher",
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """(label, value, low, high) each: a dot and its interval, the best on top; NaN at the bottom with the word for it.

    reference: a value drawn as a line through all rows; without it, that of the row called chance if there is one.
    """
    refuse_empty(rows, "row")
    sign = -1 if better == "higher" else 1
    ordered = sorted(rows, key=lambda row: (row[1] != row[1], sign * row[1] if row[1] == row[1] else 0))
    chance = next((value for label, value, _, _ in rows if is_chance_label(label)), None)
    reference = chance if reference is None else reference
    with apply_style():
        made = make_figure(4.6 + estimate_label_width([label for label, *_ in rows]), 0.9 + 0.28 * len(rows))
        axes = made.subplots()
        if reference is not None and reference == reference:
            axes.axvline(reference, color=DIM_INK, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
        for place, (label, value, low, high) in enumerate(ordered):
            colour = DIM_INK if is_chance_label(label) else PALETTE[0]
            if value != value:
                axes.text(0.01, place, "undefined", color=DIM_INK, va="center", transform=axes.get_yaxis_transform())
                continue
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2, alpha=0.45, solid_capstyle="round")
            axes.plot([value], [place], "o", color=colour, markersize=5)
        axes.set_yticks(range(len(ordered)), [shorten_label(label) for label, *_ in ordered])
        axes.set_ylim(len(ordered) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=LINE_COLOUR, linewidth=0.6)
        label_axes(axes, title, f"{xlabel} ({better} is better)" if xlabel else f"{better} is better", "")
        add_note(made, note)
        said = "; ".join(f"{label} {value:.3g} ({low:.3g} to {high:.3g})" for label, value, low, high in ordered)
        return Drawing(made, f"{title or 'Ranking'}, best first: {said}.")


def draw_matrix(
    labels: Sequence[str],
    values: Any,
    *,
    columns: Sequence[str] | None = None,
    title: str = "",
    between: tuple[float, float] = (-1.0, 1.0),
    signed: bool = True,
    digits: int = 2,
    note: str = "",
) -> Drawing:
    """A number in every square, tinted by it; with one list of labels, both ways."""
    values = as_array(values)
    columns = labels if columns is None else columns
    if values.shape != (len(labels), len(columns)):
        raise InputError(f"A matrix of {values.shape} does not fit {len(labels)} rows and {len(columns)} columns.")
    refuse_empty(labels, "row")
    refuse_empty(columns, "column")
    with apply_style():
        slanted = estimate_label_width(columns, 28)
        made = make_figure(
            0.5 + estimate_label_width(labels, 28) + 0.42 * len(columns) + slanted,
            0.8 + 0.8 * slanted + 0.3 * len(labels),
        )
        axes = made.subplots()
        colours = paint_array(values, between, signed=signed)
        axes.imshow(colours, aspect="auto", interpolation="nearest")
        for row, column in np.ndindex(*values.shape):
            value = values[row, column]
            text = "–" if value != value else f"{value:.{digits}f}"
            colour = to_hex(choose_ink(tuple(colours[row, column].tolist())))
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(len(columns)), [shorten_label(c, 28) for c in columns], rotation=40, ha="left")
        axes.set_yticks(range(len(labels)), [shorten_label(label, 28) for label in labels])
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(labels) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="minor", length=0, top=False)
        if title:
            made.suptitle(shorten_label(title, 80), fontsize=10, fontweight="bold", x=0.01, ha="left")
        add_note(made, note)
        return Drawing(made, f"{title or 'Matrix'}: {len(labels)} by {len(columns)}.")


def draw_conservation(
    kept: Sequence[float],
    absorbed: Mapping[str, Sequence[float]] | None = None,
    *,
    labels: Sequence[str] | None = None,
    title: str = "Where the relevance goes",
    ylabel: str = "share of the explained output",
    note: str = "",
) -> Drawing:
    """At every block boundary, from the answer to the input: the share still on its way, and what took the rest."""
    refuse_empty(kept, "boundary")
    parts = {"on its way": as_array(kept)} | {name: as_array(part) for name, part in (absorbed or {}).items()}
    names = list(labels) if labels is not None else [str(i) for i in range(len(kept))]
    if any(part.shape != (len(names),) for part in parts.values()):
        raise InputError(f"{len(names)} boundaries need as many shares of every part.")
    with apply_style():
        made = make_figure(max(3.6, 1.2 + 0.42 * len(names) + estimate_label_width(parts)), 3.2)
        axes = made.subplots()
        above, below = np.zeros(len(names)), np.zeros(len(names))
        for place, (name, part) in enumerate(parts.items()):
            start = np.where(part >= 0, above, below)
            colour = PALETTE[0] if place == 0 else PALETTE[1 + (place - 1) % (len(PALETTE) - 1)]
            axes.bar(range(len(names)), part, bottom=start, width=0.72, color=colour, label=shorten_label(name))
            above, below = above + part.clip(0), below + part.clip(max=0)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.axhline(0, color=DIM_INK, linewidth=0.6)
        axes.set_xticks(range(len(names)), [shorten_label(name, 14) for name in names])
        label_axes(axes, title, "block boundary", ylabel)
        made.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        add_note(made, note)
        said = ", ".join(f"{name} {share:.3g}" for name, share in zip(names, as_array(kept), strict=True))
        return Drawing(made, f"{title}: {said}.")


def draw_violins(
    groups: Mapping[str, Any],
    *,
    title: str = "",
    ylabel: str = "",
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """The distribution of each group, with its median and quartiles; groups of fewer than 5 values as dots."""
    refuse_empty(groups, "group")
    with apply_style():
        made = make_figure(max(3.2, 1.2 + 0.75 * len(groups)), 3.0 + 0.5 * estimate_label_width(groups, 24))
        axes = made.subplots()
        if reference is not None:
            axes.axhline(reference, color=DIM_INK, linewidth=0.8, linestyle=(0, (4, 2)))
        for place, (label, given) in enumerate(groups.items()):
            values = keep_finite(given)
            colour = choose_series_colour(label, place)
            if values.size >= 5 and np.ptp(values) > 0:
                body = axes.violinplot([values], [place], widths=0.8, showextrema=False)["bodies"][0]  # type: ignore[index]
                body.set(facecolor=colour, alpha=0.35, linewidth=0)
            else:
                axes.plot([place] * values.size, values, "o", color=colour, markersize=4, alpha=0.6)
            if values.size:
                quarter, middle, three = np.quantile(values, [0.25, 0.5, 0.75])
                axes.plot([place, place], [quarter, three], color=colour, linewidth=3, solid_capstyle="round")
                axes.plot([place], [middle], "o", color="white", markeredgecolor=colour, markersize=5)
        slant = {"rotation": 30, "ha": "right"} if len(groups) > 4 else {}
        axes.set_xticks(range(len(groups)), [shorten_label(label, 24) for label in groups], **slant)  # type: ignore[arg-type]
        axes.grid(axis="y", color=LINE_COLOUR, linewidth=0.6)
        axes.set_axisbelow(True)
        label_axes(axes, title, "", ylabel)
        add_note(made, note)
        return Drawing(made, f"{title or 'Distributions'}: {format_medians(groups)}.")


def draw_histogram(
    groups: Mapping[str, Any] | Any,
    *,
    bins: int = 30,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "examples",
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """How many values lie where; several groups share the edges of the bins."""
    named: Mapping[str, Any] = groups if isinstance(groups, Mapping) else {"": groups}
    refuse_empty(named, "group")
    found = {label: keep_finite(values) for label, values in named.items()}
    pooled = np.concatenate(list(found.values()))
    edges = np.histogram_bin_edges(pooled if pooled.size else np.zeros(1), bins=bins).tolist()
    with apply_style():
        made = make_figure(5.6, 3.2)
        axes = made.subplots()
        for place, (label, values) in enumerate(found.items()):
            colour = choose_series_colour(label, place)
            filled = {"histtype": "stepfilled", "alpha": 0.3, "color": colour}
            axes.hist(values, edges, **filled)  # type: ignore[arg-type]
            axes.hist(values, edges, histtype="step", color=colour, linewidth=1.4, label=shorten_label(label))
        if reference is not None:
            axes.axvline(reference, color=DIM_INK, linewidth=0.8, linestyle=(0, (4, 2)))
        label_axes(axes, title, xlabel, ylabel)
        if any(found):
            axes.legend()
        add_note(made, note)
        return Drawing(made, f"{title or 'Histogram'}: {format_medians(named)}.")


def draw_densities(
    groups: Mapping[str, Any],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "density",
    between: tuple[float, float] | None = None,
    reference: float | None = None,
    note: str = "",
) -> Drawing:
    """Smooth distributions over one axis: a normal kernel of Silverman's width, cut off at `between`."""
    refuse_empty(groups, "group")
    found = {label: keep_finite(values) for label, values in groups.items()}
    pooled = np.concatenate(list(found.values()))
    low, high = between or ((pooled.min(), pooled.max()) if pooled.size else (0.0, 1.0))
    margin = 0.0 if between else 0.08 * (high - low) or 0.5
    x = np.linspace(low - margin, high + margin, 256)
    with apply_style():
        made = make_figure(4.4 + estimate_label_width(groups), 3.2)
        axes = made.subplots()
        for place, (label, values) in enumerate(found.items()):
            look = choose_line_style(label, place)
            y = estimate_density(values, x)
            axes.plot(x, y, label=shorten_label(f"{label} (n = {values.size})"), linewidth=1.6, **look)
            axes.fill_between(x, 0, y, color=look["color"], alpha=0.15, linewidth=0)
        if reference is not None:
            axes.axvline(reference, color=DIM_INK, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.set_ylim(bottom=0)
        label_axes(axes, title, xlabel, ylabel)
        made.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        add_note(made, note)
        return Drawing(made, f"{title or 'Densities'}: {format_medians(groups)}.")


def draw_scatter(
    groups: Mapping[str, tuple[Any, Any]],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    diagonal: bool = False,
    note: str = "",
) -> Drawing:
    """One dot a pair of values; `diagonal` draws where both are the same."""
    refuse_empty(groups, "group")
    with apply_style():
        made = make_figure(4.2 + estimate_label_width(groups), 3.8)
        axes = made.subplots()
        for place, (label, (x, y)) in enumerate(groups.items()):
            colour = choose_series_colour(label, place)
            axes.plot(
                as_array(x), as_array(y), "o", color=colour, markersize=4, alpha=0.6, label=shorten_label(label), mew=0
            )
        if diagonal:
            axes.axline((0, 0), slope=1, color=DIM_INK, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.grid(color=LINE_COLOUR, linewidth=0.6)
        axes.set_axisbelow(True)
        label_axes(axes, title, xlabel, ylabel)
        if any(groups):
            made.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        add_note(made, note)
        counts = ", ".join(f"{label or 'points'}: {as_array(x).size}" for label, (x, _) in groups.items())
        return Drawing(made, f"{title or 'Scatter'}: {counts}.")


# --- numbers ----------------------------------------------------------------------------------------------------------


def as_array(values: Any) -> np.ndarray:
    """Anything list-like as float64; tensors come from any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def keep_finite(values: Any) -> np.ndarray:
    flat = as_array(values).ravel()
    return flat[np.isfinite(flat)]


def find_last_finite(values: Any) -> float:
    there = keep_finite(values)
    return float(there[-1]) if there.size else float("nan")


def format_medians(groups: Mapping[str, Any]) -> str:
    said = []
    for label, values in groups.items():
        there = keep_finite(values)
        middle = f"median {np.median(there):.3g} of {there.size}" if there.size else "no values"
        said.append(f"{label}: {middle}" if label else middle)
    return ", ".join(said)


def estimate_density(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Silverman's rule; a group that is all the same gets a narrow peak."""
    if not values.size:
        return np.zeros_like(x)
    spread = min(values.std(), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.34) or values.std()
    width = 0.9 * spread * values.size**-0.2 or (x[-1] - x[0]) / 100
    z = (x[:, None] - values[None]) / width
    return np.exp(-0.5 * z * z).sum(1) / (values.size * width * np.sqrt(2 * np.pi))


# --- look -------------------------------------------------------------------------------------------------------------


def is_chance_label(label: str) -> bool:
    return label.split("(")[0] in CHANCE_NAMES


def choose_series_colour(label: str, place: int) -> str:
    return DIM_INK if is_chance_label(label) else PALETTE[place % len(PALETTE)]


def choose_line_style(label: str, place: int) -> dict[str, Any]:
    dashes = DASHES[1] if is_chance_label(label) else DASHES[place // len(PALETTE) % len(DASHES)]
    return {"color": choose_series_colour(label, place), "linestyle": dashes}


def shorten_label(text: str, most: int = 48) -> str:
    """A label from anybody, safe to draw; one that begins with an underscore would be left out of a legend."""
    text = make_visible(text)
    text = text if len(text) <= most else text[: most - 1].rstrip() + "…"
    return f"\u200b{text}" if text.startswith("_") else text


def estimate_label_width(labels: Iterable[str], most: int = 48) -> float:
    """Inches that the longest of these labels takes, about."""
    return 0.35 + 0.075 * max((len(shorten_label(label, most)) for label in labels), default=0)


def label_axes(axes: "Axes", title: str, xlabel: str, ylabel: str) -> None:
    axes.set_title(shorten_label(title, 80))
    axes.set_xlabel(shorten_label(xlabel, 80))
    axes.set_ylabel(shorten_label(ylabel, 44))


def add_note(made: Any, note: str) -> None:
    """A small line below everything: what the bands are, how many examples."""
    if note:
        made.supxlabel(shorten_label(note, 120), fontsize=7.5, color=DIM_INK, x=0.01, ha="left")


def refuse_empty(things: Any, what: str) -> None:
    if not len(things):
        raise InputError(f"There is no {what} to draw.")
