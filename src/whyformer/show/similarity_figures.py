"""A heat map of the pairs of tokens that make two inputs alike."""

from collections.abc import Sequence

from torch import Tensor

from whyformer.show.colours import find_limits, paint_scores
from whyformer.show.drawing import DIM_INK, Drawing, apply_style, make_figure
from whyformer.show.text_width import shorten_to_width

MAX_NAMED = 48  # tokens on an axis; more are not named
CELL, LARGEST = 0.2, 7.0  # inches: of a token, and of the longer side


def draw_pair_matrix(
    table: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    note: str,
    signed: bool = True,
    axis_names: tuple[str, str] = ("a", "b"),
) -> Drawing:
    """[row column]: orange pairs make the inputs more alike, blue ones less."""
    height, width = (max(1.6, min(CELL * len(names), LARGEST)) for names in (rows, columns))
    with apply_style():
        figure = make_figure(1.8 + width, 1.7 + height)
        axes = figure.subplots()
        between = find_limits(table, signed=signed, floor=0.0)
        axes.imshow(paint_scores(table, between, signed=signed).numpy(), interpolation="nearest", aspect="auto")
        for names, set_ticks, turn in ((columns, axes.set_xticks, 90), (rows, axes.set_yticks, 0)):
            shown = [shorten_to_width(name, 7, 80) for name in names] if len(names) <= MAX_NAMED else []
            set_ticks(range(len(shown)), shown, rotation=turn, fontsize=7)
        axes.set(ylabel=axis_names[0], xlabel=axis_names[1])
        axes.tick_params(length=0)
        wide = 72 * (1.6 + width)
        figure.suptitle(shorten_to_width(title, 10, wide), fontsize=10, fontweight="bold", x=0.01, ha="left")
        figure.supxlabel(shorten_to_width(note, 7, wide), fontsize=7, color=DIM_INK, x=0.01, ha="left")
        return Drawing(figure, f"{title}: {len(rows)} x {len(columns)} pairs, the strongest {between[1]:.2g}.")
