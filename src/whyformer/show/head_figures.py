"""Layers and heads: a grid of attention maps, links between tokens, pairs of tokens, layer by layer."""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from whyformer._plain.tokens import Grid, Pieces, ScoredTokens
from whyformer.errors import InputError
from whyformer.show.canvas import Canvas
from whyformer.show.chips import name_piece
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, UNSIGNED_STOPS, find_limits, paint_scores, to_hex
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, Drawing, apply_style, make_figure
from whyformer.show.figures import draw_image_grid, draw_panel_table
from whyformer.show.html import Html, make_element
from whyformer.show.panel import Panel
from whyformer.show.panel_images import format_limits, make_cell_image
from whyformer.show.report import make_scrollable, to_data_uri
from whyformer.show.text_width import shorten_to_width
from whyformer.show.wording import format_headline

MAX_MAPS = 2_000  # in one figure
MAX_LINKED_TOKENS = 96  # on each side


def name_positions(tokens: ScoredTokens, patches: Sequence[int] | None, length: int) -> tuple[str, ...]:
    """A name for every position that attention sees: the piece of a text, or row,column of a patch."""
    if isinstance(tokens, Pieces):
        return tuple(name_piece(tokens, i).strip() or tokens.pieces[i] for i in range(len(tokens)))
    names = {index: f"{i // tokens.columns},{i % tokens.columns}" for i, index in enumerate(patches or ())}
    return tuple(names.get(index, "special") for index in range(length))


def paint_tile(scores: Tensor, *, signed: bool) -> Image.Image:
    """The map of one head, one pixel per cell, on its own colour scale."""
    between = find_limits(scores, signed=signed, floor=0.0)
    return Image.fromarray(paint_scores(scores, between, signed=signed).contiguous().numpy())


def draw_head_grid(maps: Tensor, *, title: str, note: str, signed: bool) -> Drawing:
    """[layer head row column]: layers from top to bottom, heads from left to right."""
    layers, count = maps.shape[:2]
    if layers * count > MAX_MAPS:
        raise InputError(f"{layers} x {count} maps are too many for one figure (at most {MAX_MAPS}). Select layers.")
    side = max(22.0, min(64.0, 440.0 / count))
    margin = 22.0
    canvas = Canvas(margin + count * (side + 4))
    canvas.add_title(11, title, 10)
    for head in range(count):
        canvas.add_text(margin + head * (side + 4) + side / 2, 26, str(head), 6.5, color=DIM_INK, ha="center")
    height = side * maps.shape[2] / maps.shape[3]
    for layer in range(layers):
        y = 30 + layer * (height + 4)
        canvas.add_text(margin - 6, y + height / 2 + 2, str(layer), 6.5, color=DIM_INK, ha="right")
        for head in range(count):
            x = margin + head * (side + 4)
            canvas.add_box(x - 0.6, y - 0.6, side + 1.2, height + 1.2, LINE_COLOUR)
            canvas.add_image(x, y, side, paint_tile(maps[layer, head], signed=signed), crisp=True)
    canvas.add_small_print(canvas.height + 12, f"{note} Rows are layers, columns are heads.")
    return canvas.to_drawing(f"{title}. {layers} layers, {count} heads.")


def make_head_table(maps: Tensor, *, signed: bool) -> Html:
    """[layer head row column] as an HTML table: tiny images, enlarged by the browser."""
    layers, count = maps.shape[:2]
    width = f"width:clamp(1.25rem,(100cqw - 3.5rem)/{count} - .35rem,5.5rem)"  # as wide as the page allows
    # "head 3" above a column, on two lines where it is narrow
    names = [make_element("span", "head ", make_element("wbr"), number) for number in range(count)]
    heads = [make_element("th", name, scope="col") for name in names]
    head = make_element("tr", make_element("th", "layer"), *heads)
    lines = []
    for layer in range(layers):
        cells = [make_element("th", layer, scope="row")]
        for index, scores in enumerate(maps[layer]):
            alt = f"layer {layer}, head {index}, largest {scores.abs().max().item():.2g}"
            source = to_data_uri(paint_tile(scores, signed=signed))
            image = make_element("img", alt=alt, title=alt, src=source, class_="crisp tile", style=width)
            cells.append(make_element("td", image))
        lines.append(make_element("tr", *cells))
    table = make_element("table", make_element("thead", head), make_element("tbody", *lines), class_="heads")
    return make_element("div", make_scrollable(table, "Layers and heads"), class_="table-box")


def draw_attention_links(weights: Tensor, pieces: Sequence[str], *, title: str, signed: bool) -> Drawing:
    """[query key]: every token on the left linked to the tokens it attends to, on the right; darker is more."""
    if (count := len(pieces)) > MAX_LINKED_TOKENS:
        raise InputError(f"{count} tokens are too many to draw links for (at most {MAX_LINKED_TOKENS}). Use .matrix().")
    largest = weights.abs().max().item() or 1.0
    height = 0.9 + 0.2 * len(pieces)
    with apply_style():
        figure = make_figure(5.2, height)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1 - 0.45 / height))
        axes.set(xlim=(0, 1), ylim=(len(pieces) - 0.2, -0.9))
        axes.set_axis_off()
        for query, key in np.ndindex(*weights.shape):
            weight = weights[query, key].item()
            if abs(weight) < 0.02 * largest:
                continue
            colour = (AGAINST_COLOUR if weight < 0 else FOR_COLOUR) if signed else UNSIGNED_STOPS[2]
            line = axes.plot([0.34, 0.66], [query, key], color=to_hex(colour), solid_capstyle="round")[0]
            share = abs(weight) / largest
            line.set(alpha=min(1.0, share) * 0.85, linewidth=0.4 + 1.8 * abs(weight) / largest)
        for index, piece in enumerate(pieces):
            text = shorten_to_width(piece, 8.5, 118)
            axes.text(0.325, index, text, ha="right", va="center", fontsize=8.5)
            axes.text(0.675, index, text, ha="left", va="center", fontsize=8.5)
        axes.text(0.325, -0.75, "from (query)", ha="right", fontsize=7, color=DIM_INK)
        axes.text(0.675, -0.75, "to (key)", ha="left", fontsize=7, color=DIM_INK)
        figure.text(0.01, 1 - 0.2 / height, shorten_to_width(title, 10, 360), fontsize=10, fontweight="bold")
        return Drawing(figure, f"{title}. The largest weight is {largest:.2g}.")


def draw_attention_matrix(weights: Tensor, pieces: Sequence[str], *, title: str, signed: bool) -> Drawing:
    """[query key] as a heat map; up to 48 tokens are named on both axes."""
    names = ("from (query)", "to (key)")
    return draw_pair_matrix(weights, pieces, pieces, title=title, note="", signed=signed, axis_names=names)


# --- layer by layer ---------------------------------------------------------------------------------------------------


def draw_build_up(panel: Panel, layers: Tensor) -> Drawing:
    """[layer token]: the explanation by the last layer alone, then with one earlier layer more at a time."""
    steps = list_build_up_steps(panel, layers)
    title = f"{format_headline(panel)}, by {panel.label}, layer by layer"
    alt = f"{format_headline(panel)}, by {panel.label}: from the last layer alone to all layers"
    if not panel.is_image:
        rows = [("", [step for _, step in steps])]
        return draw_panel_table(rows, [label for label, _ in steps], title=title, alt=alt)
    across = min(len(steps), 6)
    side, gap = 108.0, 8.0
    canvas = Canvas(across * (side + gap) - gap)
    canvas.add_title(11, title, 10.5)
    cells = [(label, format_limits(step), *make_cell_image(step, max_side=360)) for label, step in steps]
    draw_image_grid(canvas, 24.0, cells, across, side=side, gap=gap)
    return canvas.to_drawing(alt)


def list_build_up_steps(panel: Panel, layers: Tensor) -> list[tuple[str, Panel]]:
    """(label, panel) of every step of the build-up."""
    last = len(layers) - 1
    labels = [*(f"layers {first} to {last}" for first in range(last)), f"layer {last} alone"]
    panels = [replace(panel, scores=scores.double(), pixels=None) for scores in layers]
    return list(zip(labels, panels, strict=True))[::-1]


def animate_build_up(panel: Panel, layers: Tensor, *, seconds: float = 0.7, max_side: int = 360) -> bytes:
    """The build-up of an image explanation as a GIF, `seconds` per step; the last step lasts three times as long."""
    if not isinstance(panel.tokens, Grid):
        raise InputError("Only image explanations can be animated. Save the build-up of a text as .svg or .html.")
    frames = [draw_frame(label, step, max_side) for label, step in list_build_up_steps(panel, layers)]
    file = BytesIO()
    times = [int(seconds * 1000)] * (len(frames) - 1) + [int(seconds * 3000)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)
    return file.getvalue()


def draw_frame(label: str, step: Panel, max_side: int) -> Image.Image:
    """One frame of the GIF, its label on top."""
    image, crisp = make_cell_image(step, max_side=max_side)
    if crisp:
        image = image.resize((max_side, max_side * image.height // image.width), Image.Resampling.NEAREST)
    frame = Image.new("RGB", (image.width, image.height + 22), "white")
    frame.paste(image, (0, 22))
    ImageDraw.Draw(frame).text((4, 5), label, fill="black")
    return frame.quantize(96)


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
