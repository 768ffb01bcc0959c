"""Layers and heads: small maps in a grid, lines from token to token, the build-up of an explanation layer by layer."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._plain.tokens import Grid, Pieces, Tokens
from whyformer.errors import InputError
from whyformer.show import figures
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, UNSIGNED_STOPS, find_limits, paint, to_hex
from whyformer.show.drawing import DIM_INK, LINE_COLOUR, Drawing, apply_style, make_figure
from whyformer.show.figures import Board, shorten_to_width
from whyformer.show.panel import Panel
from whyformer.show.report import Html, make_element, to_data_uri
from whyformer.show.terminal import characters_of_piece
from whyformer.show.wording import format_headline

MOST_MAPS = 2_000  # maps in one figure
MOST_LINKED_TOKENS = 96  # tokens on one side


def name_tokens(tokens: Tokens, patches: Sequence[int] | None, length: int) -> tuple[str, ...]:
    """What to call every token of the attention."""
    if isinstance(tokens, Pieces):
        return tuple(characters_of_piece(tokens, i).strip() or tokens.pieces[i] for i in range(len(tokens)))
    found = {place: f"{i // tokens.columns},{i % tokens.columns}" for i, place in enumerate(patches or ())}
    return tuple(found.get(place, "special") for place in range(length))


def paint_tile(scores: Tensor, *, signed: bool) -> Image.Image:
    """One head's map, a pixel a cell, on its own scale."""
    between = find_limits(scores, signed=signed, floor=0.0)
    return Image.fromarray(paint(scores, between, signed=signed).contiguous().numpy())


def draw_head_grid(maps: Tensor, *, title: str, note: str, signed: bool) -> Drawing:
    """[layer head row column]: layers from top to bottom, heads from left to right."""
    layers, count = maps.shape[:2]
    if layers * count > MOST_MAPS:
        raise InputError(f"{layers} x {count} maps are too many for one figure. Choose some layers.")
    side = max(22.0, min(64.0, 440.0 / count))
    margin = 22.0
    board = Board(margin + count * (side + 4))
    board.text(0, 11, shorten_to_width(title, 10, board.width), 10, fontweight="bold")
    for head in range(count):
        board.text(margin + head * (side + 4) + side / 2, 26, str(head), 6.5, color=DIM_INK, ha="center")
    height = side * maps.shape[2] / maps.shape[3]
    for layer in range(layers):
        y = 30 + layer * (height + 4)
        board.text(margin - 6, y + height / 2 + 2, str(layer), 6.5, color=DIM_INK, ha="right")
        for head in range(count):
            x = margin + head * (side + 4)
            board.box(x - 0.6, y - 0.6, side + 1.2, height + 1.2, LINE_COLOUR)
            board.place_image(x, y, side, paint_tile(maps[layer, head], signed=signed), crisp=True)
    y = board.height + 12
    for line in wrap_text(f"{note} Layers go down, heads across.", 7, board.width):
        board.text(0, y, line, 7, color=DIM_INK)
        y += 9
    return board.drawing(f"{title}. {layers} layers, {count} heads.")


def wrap_text(text: str, size: float, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if figures.measure_text(longer, size) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def make_head_table(maps: Tensor, *, signed: bool) -> Html:
    """The same for a page: tiny pictures, enlarged by the browser."""
    layers, count = maps.shape[:2]
    width = f"width:{max(2.2, min(5.5, 40 / count)):.1f}rem"
    head = make_element(
        "tr", make_element("th", "layer"), *(make_element("th", f"head {h}", scope="col") for h in range(count))
    )
    lines = []
    for layer in range(layers):
        cells = []
        for place in range(count):
            scores = maps[layer, place]
            alt = f"layer {layer}, head {place}, largest {scores.abs().max().item():.2g}"
            shown = make_element(
                "img",
                alt=alt,
                title=alt,
                src=to_data_uri(paint_tile(scores, signed=signed)),
                class_="crisp tile",
                style=width,
            )
            cells.append(make_element("td", shown))
        lines.append(make_element("tr", make_element("th", layer, scope="row"), *cells))
    table = make_element("table", make_element("thead", head), make_element("tbody", *lines), class_="heads")
    return make_element("div", table, class_="wide", tabindex="0", role="region", aria_label="Layers and heads")


def draw_attention_links(weights: Tensor, pieces: Sequence[str], *, title: str, signed: bool) -> Drawing:
    """[query key]: every token at the left joined to what it looks at, at the right; the darker the more."""
    if len(pieces) > MOST_LINKED_TOKENS:
        raise InputError(
            f"{len(pieces)} tokens are too many to be joined by lines; at most {MOST_LINKED_TOKENS} are. See .matrix()."
        )
    largest = weights.abs().max().item() or 1.0
    height = 0.9 + 0.2 * len(pieces)
    with apply_style():
        made = make_figure(5.2, height)
        made.set_layout_engine("none")
        axes = made.add_axes((0.0, 0.0, 1.0, 1 - 0.45 / height))
        axes.set(xlim=(0, 1), ylim=(len(pieces) - 0.2, -0.9))
        axes.set_axis_off()
        for query, key in np.ndindex(*weights.shape):
            weight = weights[query, key].item()
            if abs(weight) < 0.02 * largest:
                continue
            colour = (AGAINST_COLOUR if weight < 0 else FOR_COLOUR) if signed else UNSIGNED_STOPS[2]
            axes.plot(
                [0.34, 0.66],
                [query, key],
                color=to_hex(colour),
                alpha=min(1.0, abs(weight) / largest) * 0.85,
                linewidth=0.4 + 1.8 * abs(weight) / largest,
                solid_capstyle="round",
            )
        for place, piece in enumerate(pieces):
            text = shorten_to_width(piece, 8.5, 118)
            axes.text(0.325, place, text, ha="right", va="center", fontsize=8.5)
            axes.text(0.675, place, text, ha="left", va="center", fontsize=8.5)
        axes.text(0.325, -0.75, "looks from", ha="right", fontsize=7, color=DIM_INK)
        axes.text(0.675, -0.75, "at", ha="left", fontsize=7, color=DIM_INK)
        made.text(0.01, 1 - 0.2 / height, shorten_to_width(title, 10, 360), fontsize=10, fontweight="bold")
        return Drawing(made, f"{title}. The strongest is {largest:.2g}.")


def draw_attention_matrix(weights: Tensor, pieces: Sequence[str], *, title: str, signed: bool) -> Drawing:
    """[query key] as a table of colours with the tokens at its edges, as far as they can be read."""
    count = len(pieces)
    with apply_style():
        made = make_figure(1.6 + max(2.2, min(0.2 * count, 7)), 1.4 + max(2.2, min(0.2 * count, 7)))
        axes = made.subplots()
        between = find_limits(weights, signed=signed, floor=0.0)
        axes.imshow(paint(weights, between, signed=signed).numpy(), interpolation="nearest")
        if count <= 48:
            names = [shorten_to_width(piece, 7, 80) for piece in pieces]
            axes.set_xticks(range(count), names, rotation=90, fontsize=7)
            axes.set_yticks(range(count), names, fontsize=7)
        axes.set_xlabel("at (key)")
        axes.set_ylabel("looks from (query)")
        axes.tick_params(length=0)
        axes.set_title(shorten_to_width(title, 10, 400))
        return Drawing(made, f"{title}, {count} x {count} tokens.")


# --- layer by layer ---------------------------------------------------------------------------------------------------


def draw_build_up(case: Panel, layers: Tensor) -> Drawing:
    """[layer unit]: the explanation from each layer to the last, from the last layer alone to all of them."""
    steps = [(label, step) for label, step in list_build_up_steps(case, layers)]
    across = min(len(steps), 6)
    if not case.is_image:
        return figures.draw_panel_table(
            [("", [step for _, step in steps])],
            [label for label, _ in steps],
            title=f"{format_headline(case)}, by {case.label}, layer by layer",
            alt=describe_build_up(case),
        )
    side = 108.0
    board = Board(across * (side + 8) - 8)
    board.text(
        0,
        11,
        shorten_to_width(f"{format_headline(case)}, by {case.label}, layer by layer", 10.5, board.width),
        10.5,
        fontweight="bold",
    )
    y = 24.0
    for start in range(0, len(steps), across):
        lowest = y
        for place, (label, step) in enumerate(steps[start : start + across]):
            drawn, crisp = figures.make_cell_image(step, most=360)
            bottom = y + board.place_image(place * (side + 8), y, side, drawn, crisp=crisp)
            board.text(place * (side + 8), bottom + 9, shorten_to_width(label, 7.5, side), 7.5)
            board.text(
                place * (side + 8),
                bottom + 17.5,
                shorten_to_width(figures.format_limits(step), 6.5, side),
                6.5,
                color=DIM_INK,
            )
            lowest = max(lowest, bottom + 22)
        y = lowest + 8
    return board.drawing(describe_build_up(case))


def describe_build_up(case: Panel) -> str:
    return f"{format_headline(case)}, by {case.label}: from the last layer alone to all layers"


def list_build_up_steps(case: Panel, layers: Tensor) -> list[tuple[str, Panel]]:
    from dataclasses import replace

    count = len(layers)
    steps = []
    for first in reversed(range(count)):
        label = f"layers {first} to {count - 1}" if first < count - 1 else f"layer {first} alone"
        steps.append((label, replace(case, scores=layers[first].double(), pixels=None)))
    return steps


def animate_build_up(case: Panel, layers: Tensor, *, seconds: float = 0.7, most: int = 360) -> bytes:
    """The same as a GIF that adds one layer after the other; a picture only."""
    if not isinstance(case.tokens, Grid):
        raise InputError("Only maps of pictures can be animated. Save the build-up of a text as .svg or .html.")
    frames = [draw_frame(label, step, most) for label, step in list_build_up_steps(case, layers)]
    file = BytesIO()
    times = [int(seconds * 1000)] * (len(frames) - 1) + [int(seconds * 3000)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)
    return file.getvalue()


def draw_frame(label: str, step: Panel, most: int) -> Image.Image:
    from PIL import ImageDraw

    drawn, crisp = figures.make_cell_image(step, most=most)
    if crisp:
        drawn = drawn.resize((most, most * drawn.height // drawn.width), Image.Resampling.NEAREST)
    canvas = Image.new("RGB", (drawn.width, drawn.height + 22), "white")
    canvas.paste(drawn, (0, 22))
    ImageDraw.Draw(canvas).text((4, 5), label, fill="black")
    return canvas.quantize(96)
