"""How charts look: colours and dashes of series, labels, notes. And the numbers behind them, as arrays."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whyformer.errors import InputError
from whyformer.show.drawing import DIM_INK, GREYS, PALETTE
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
REFERENCE_STYLE: dict[str, Any] = {"color": DIM_INK, "linewidth": 0.8, "linestyle": (0, (4, 2))}
CHANCE_NAMES = ("chance", "random")
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))  # for matplotlib, and as text
CONTROL_MARKERS = (("x", "×"), ("+", "+"), ("*", "∗"))


# --- series -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesStyle:
    """How a series looks in every chart of a page."""

    colour: str
    dashes: Any
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
    return (
        f"\N{HAIR SPACE}{text}" if text.startswith("_") else text
    )  # matplotlib hides labels that start with an underscore


def estimate_label_width(labels: Iterable[str], max_length: int = 48) -> float:
    """The approximate width of the longest label, in inches."""
    return 0.35 + 0.075 * max((len(shorten_label(label, max_length)) for label in labels), default=0)


def label_axes(axes: "Axes", title: str, xlabel: str, ylabel: str) -> None:
    axes.set_title(shorten_label(title, 80))
    axes.set_xlabel(shorten_label(xlabel, 80))
    axes.set_ylabel(shorten_label(ylabel, 44))


def add_legend(figure: "Figure", axes: "Axes") -> None:
    """A legend to the right of the axes."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")


def add_note(figure: "Figure", note: str) -> None:
    """A small line below everything: what the bands are, how many examples."""
    if note:
        figure.supxlabel(shorten_label(note, 120), fontsize=7.5, color=DIM_INK, x=0.01, ha="left")


# --- numbers ----------------------------------------------------------------------------------------------------------


def refuse_empty(items: Sized, what: str) -> None:
    if not len(items):
        raise InputError(f"There is no {what} to draw.")


def as_array(values: Any) -> np.ndarray:
    """Anything list-like as float64; tensors may be on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def keep_finite(values: Any) -> np.ndarray:
    flat = as_array(values).ravel()
    return flat[np.isfinite(flat)]


def is_whole(values: Any) -> bool:
    """Whether all values are whole numbers."""
    finite = keep_finite(values)
    return bool(finite.size) and bool((finite == finite.round()).all())


def find_last_finite(values: Any) -> float:
    finite = keep_finite(values)
    return float(finite[-1]) if finite.size else float("nan")


def format_medians(groups: Mapping[str, Any]) -> str:
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
