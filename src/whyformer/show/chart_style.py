"""How charts look: colours and dashes of series, labels, notes. And the numbers behind them, as arrays."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from whyformer.errors import InputError
from whyformer.show.drawing import DIM_INK, GREYS, PALETTE, apply_style, make_figure
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dashes: TypeAlias = str | tuple[float, tuple[float, ...]]
WIDTH = 4.9  # inches of a chart with a legend, which fits on a phone
LONGEST_LINE = 58  # characters of a title
LEGEND_GAP, LEGEND_ROW = 0.5, 0.18  # inches below the axes, and of a row

Plotted: TypeAlias = ArrayLike | Tensor | Sequence[float | None]

DASHES: tuple[Dashes, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
REFERENCE_STYLE: dict[str, Any] = {"color": DIM_INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}
CHANCE_NAMES = ("chance", "random")
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))  # for matplotlib, and as text
CONTROL_MARKERS = (("x", "×"), ("+", "+"), ("*", "∗"))


# --- series -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesStyle:
    """How a series looks in every chart of a page."""

    colour: str
    dashes: Dashes
    marker: str
    symbol: str  # the marker as text

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker, "markersize": 4.5}


def assign_styles(labels: Sequence[str], controls: Sequence[str] = ()) -> dict[str, SeriesStyle]:
    """One style for each label: the colours in turn, with other dashes and markers in each round; greys for controls.

    No two of 96 labels look the same. Chance is the same grey as where no styles are given.
    """
    styles = {}
    for index, label in enumerate(labels):
        cycle = index // len(PALETTE)
        colour, dashes = PALETTE[index % len(PALETTE)], DASHES[cycle % len(DASHES)]
        styles[label] = SeriesStyle(colour, dashes, *MARKERS[cycle % len(MARKERS)])
    greys = (DIM_INK, *GREYS)
    for index, label in enumerate(sorted(controls, key=lambda label: not is_chance_label(label))):
        marker = CONTROL_MARKERS[index % len(CONTROL_MARKERS)]
        styles[label] = SeriesStyle(greys[index % len(greys)], DASHES[1 + index % (len(DASHES) - 1)], *marker)
    return styles


def is_chance_label(label: str) -> bool:
    return label.split("(")[0] in CHANCE_NAMES


def choose_series_colour(label: str, index: int) -> str:
    """Grey for chance, else the next colour of the palette."""
    return DIM_INK if is_chance_label(label) else PALETTE[index % len(PALETTE)]


def choose_line_style(label: str, index: int) -> dict[str, Any]:
    """Colour and dashes of a line; the dashes change when the palette starts again, and chance is always dashed."""
    dashes = DASHES[1] if is_chance_label(label) else DASHES[index // len(PALETTE) % len(DASHES)]
    return {"color": choose_series_colour(label, index), "linestyle": dashes}


# --- labels -----------------------------------------------------------------------------------------------------------


def shorten_label(text: str, max_length: int = 48) -> str:
    """An untrusted label, safe to draw and not too long."""
    text = make_visible(text)
    text = text if len(text) <= max_length else text[: max_length - 1].rstrip() + "…"
    # matplotlib hides labels that start with an underscore
    return f"\N{HAIR SPACE}{text}" if text.startswith("_") else text


def estimate_label_width(labels: Iterable[str], max_length: int = 48) -> float:
    """The approximate width of the longest label, in inches."""
    return 0.35 + 0.075 * max((len(shorten_label(label, max_length)) for label in labels), default=0)


@contextmanager
def open_chart(
    size: tuple[float, float], title: str, xlabel: str, ylabel: str, note: str, *, legend: bool = True
) -> Iterator[tuple["Figure", "Axes"]]:
    """Axes to draw on, of this size in inches; then labels, a note and a legend below the axes are added."""
    with apply_style():
        figure = make_figure(*size)
        axes = figure.subplots()
        yield figure, axes
        axes.set_title(textwrap.fill(shorten_label(title, 80), LONGEST_LINE) if legend else shorten_label(title, 80))
        axes.set_xlabel(shorten_label(xlabel, 80))
        axes.set_ylabel(shorten_label(ylabel, 44))
        rows = add_legend(figure, axes, size[0]) if legend else 0
        if note:
            figure.supxlabel(
                textwrap.fill(shorten_label(note, 120), 80), fontsize=7.5, color=DIM_INK, x=0.01, ha="left"
            )
        figure.set_size_inches(size[0], size[1] + LEGEND_ROW * rows)


def add_legend(figure: "Figure", axes: "Axes", width: float) -> int:
    """Below the axes, so that a chart is as narrow as a phone needs it. Returns its rows."""
    from matplotlib.transforms import ScaledTranslation

    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return 0
    columns = max(1, int(width / (estimate_label_width(labels) + 0.2)))
    below = axes.transAxes + ScaledTranslation(0, -LEGEND_GAP, figure.dpi_scale_trans)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": below}
    axes.legend(handles, labels, ncols=columns, handlelength=1.5, columnspacing=1.2, borderaxespad=0.0, **place)
    return -(-len(handles) // columns)


def draw_cells(axes: "Axes", colours: np.ndarray, gap: float) -> None:
    """A heat map of colours [row column 3], with white gaps of this many points between its cells."""
    axes.imshow(colours, aspect="auto", interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks(np.arange(colours.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(colours.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=gap)


# --- numbers ----------------------------------------------------------------------------------------------------------


def refuse_empty(items: Sized, what: str) -> None:
    if not len(items):
        raise InputError(f"There is no {what} to draw.")


def as_array(values: Plotted) -> np.ndarray:
    """Anything list-like as float64; tensors may be on any device."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def keep_finite(values: Plotted) -> np.ndarray:
    flat = as_array(values).ravel()
    return flat[np.isfinite(flat)]


def is_whole(values: Plotted) -> bool:
    """Whether all values are whole numbers."""
    finite = keep_finite(values)
    return bool(finite.size) and bool((finite == finite.round()).all())


def find_last_finite(values: Plotted) -> float:
    finite = keep_finite(values)
    return float(finite[-1]) if finite.size else float("nan")


def format_medians(groups: Mapping[str, Plotted]) -> str:
    """'a: median 3 of 5, b: no values'"""
    parts = []
    for label, values in groups.items():
        finite = keep_finite(values)
        median = f"median {np.median(finite):.3g} of {finite.size}" if finite.size else "no values"
        parts.append(f"{label}: {median}" if label else median)
    return ", ".join(parts)


def estimate_density(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A kernel density estimate with a normal kernel and Silverman's bandwidth; identical values give a narrow peak."""
    if not values.size:
        return np.zeros_like(x)
    spread = min(values.std(), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.34) or values.std()
    width = 0.9 * spread * values.size**-0.2 or (x[-1] - x[0]) / 100
    z = (x[:, None] - values[None]) / width
    return np.exp(-0.5 * z * z).sum(1) / (values.size * width * np.sqrt(2 * np.pi))
