"""A heat map of one text by several methods: a row for each method, a column for each token.

Every row has its own scale: orange counts for the target, blue against it; methods without a sign go from white to
dark. As with coloured words, the largest score among ordinary tokens has the full colour. A long text is broken into
bands below each other; a line separates the two texts of a pair.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from whyformer.errors import InputError
from whyformer.show.chart_style import draw_cells
from whyformer.show.chips import ScoredText
from whyformer.show.colours import paint_array
from whyformer.show.drawing import DIM_INK, INK, Drawing, apply_style, make_figure
from whyformer.show.panel import Panel
from whyformer.show.text_width import shorten_to_width
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline, format_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 32  # tokens beside each other
CELL_WIDTH, CELL_HEIGHT = 0.21, 0.22  # inches
LONGEST_NAME = 64  # points of a token's name below its column


def draw_token_heat_map(panels: Mapping[str, Panel], *, title: str = "") -> Drawing:
    """[method token]: the scores of one text by several methods, each on its own scale."""
    if not panels:
        raise InputError("There is nothing to draw: no method was given.")
    first = next(iter(panels.values()))
    if any(panel.is_image for panel in panels.values()):
        raise InputError("A heat map of tokens is for texts. Draw an image with .draw().")
    texts = {label: panel.scored_text for label, panel in panels.items()}
    lengths = {len(text.chips) for text in texts.values()}
    if len(lengths) > 1:
        raise InputError("A heat map of tokens needs explanations of one text: these have different tokens.")
    count = lengths.pop()
    bands = [range(start, min(start + BAND, count)) for start in range(0, count, BAND)]
    scores = {label: np.array([chip.score for chip in text.chips]) for label, text in texts.items()}
    painted = [paint_array(scores[label], text.between, signed=text.signed) for label, text in texts.items()]
    colours = np.stack(painted)  # method token colour
    limits = [format_row_limit(text) for text in texts.values()]
    with apply_style():
        margin = 0.075 * max(len(label) for label in panels) + 0.2
        width = margin + CELL_WIDTH * min(count, BAND) + 0.8
        figure = make_figure(max(width, 3.6), len(bands) * (CELL_HEIGHT * len(panels) + 0.95) + 0.35)
        rows = figure.subplots(len(bands), 1, squeeze=False)[:, 0]
        for axes, band in zip(rows, bands, strict=True):
            draw_band(axes, colours[:, band.start : band.stop], [make_visible(label) for label in panels], limits)
            name_columns(axes, next(iter(texts.values())), band)
            axes.set_xlim(-0.5, min(count, BAND) - 0.5)
        shown = title or format_headline(first)
        figure.suptitle(shorten_to_width(shown, 10, 72 * width), fontsize=10, fontweight="bold", x=0.01, ha="left")
        return Drawing(figure, f"{shown}: {count} tokens by {', '.join(panels)}.")


def format_row_limit(text: ScoredText) -> str:
    """The score that has the full colour."""
    size = format_score(max(abs(limit) for limit in text.between), signed=False, digits=2)
    return f"±{size}" if text.signed else size


def draw_band(axes: "Axes", colours: np.ndarray, labels: Sequence[str], limits: Sequence[str]) -> None:
    """One band of the heat map, with the methods on the left and their scales on the right."""
    draw_cells(axes, colours, 1.0)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(which="both", length=0)
    for row, limit in enumerate(limits):
        axes.text(colours.shape[1] - 0.3, row, limit, va="center", fontsize=6.5, color=DIM_INK)


def name_columns(axes: "Axes", text: ScoredText, band: range) -> None:
    """The tokens below their columns; special ones in italics. A line where the second text of a pair begins."""
    names = [shorten_to_width(text.chips[i].text, 7.5, LONGEST_NAME) for i in band]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7.5)
    for index, (i, tick) in enumerate(zip(band, axes.get_xticklabels(), strict=True)):
        chip = text.chips[i]
        tick.set(style="italic" if chip.special else "normal", color=DIM_INK if chip.special else INK)
        if chip.opens and i:
            axes.axvline(index - 0.5, color=INK, linewidth=1.4)
