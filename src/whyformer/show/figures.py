"""Plates: explanations as static figures for a paper or a slide. Words and numbers are text, also in SVG and PDF.

    plate(cases)               each example: the picture, the map over it; or its words in colour
    sheet(rows, columns)       a table of maps, such as classes x methods

Everything is placed by hand, in points from the upper left corner, so that nothing depends on what else is drawn.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.cells import cell_len

from whyformer.errors import InputError
from whyformer.show import overlay
from whyformer.show.chips import Chip, find_chip_limits, make_chips, split_letters
from whyformer.show.colours import choose_ink, paint, to_hex
from whyformer.show.drawing import DIM_INK, INK, LINE_COLOUR, Drawing, apply_style, find_fonts, make_figure
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_certainty, format_headline, name_target

PAGE_WIDTH = 470.0  # points: the text width of a page
IMAGE_GAP = 14.0
IMAGE_SIDE = 900  # pixels of the longer side of a picture in a figure
FONT_SIZE, LINE_HEIGHT, CHIP_PADDING = 10.5, 19.0, 2.2  # of words


class Board:
    """Where things are placed; y grows downwards."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.things: list[tuple[str, dict[str, Any]]] = []

    def text(self, x: float, y: float, text: str, size: float = 9, **look: Any) -> None:
        """y is the baseline."""
        self.add("text", y + 0.3 * size, x=x, y=y, text=make_visible(text), size=size, look=look)

    def box(self, x: float, y: float, width: float, height: float, colour: str, radius: float = 0.0) -> None:
        self.add("box", y + height, x=x, y=y, width=width, height=height, colour=colour, radius=radius)

    def place_image(self, x: float, y: float, width: float, shown: Image.Image, *, crisp: bool = False) -> float:
        """The height it takes."""
        height = width * shown.height / shown.width
        self.add("picture", y + height, x=x, y=y, width=width, height=height, shown=shown, crisp=crisp)
        return height

    def bar(self, x: float, y: float, between: tuple[float, float], *, signed: bool, width: float = 90.0) -> float:
        """A colour bar with its two limits in numbers; where it ends."""
        low, high = (f"{limit:+.2g}" if signed else f"{limit:.2g}" for limit in between)
        low, high = (f"{low} against", f"{high} for") if signed else (low, high)
        start = x + measure_text(low, 7.5) + 4
        self.text(x, y, low, 7.5, color=DIM_INK)
        steps = torch.linspace(0, 1, 65, dtype=torch.double)
        colours = paint(steps, (0.0, 1.0), signed=signed).numpy()[None]
        self.box(start - 0.4, y - 6.2, width + 0.8, 6.8, LINE_COLOUR)
        self.add("picture", y, x=start, y=y - 5.8, width=width, height=6.0, shown=Image.fromarray(colours), crisp=False)
        self.text(start + width + 4, y, high, 7.5, color=DIM_INK)
        return start + width + 4 + measure_text(high, 7.5)

    def add(self, kind: str, bottom: float, **facts: Any) -> None:
        self.things.append((kind, facts))
        self.height = max(self.height, bottom)

    def drawing(self, alt: str) -> Drawing:
        from matplotlib.patches import FancyBboxPatch, Rectangle
        from matplotlib.transforms import Affine2D

        with apply_style():
            made = make_figure(self.width / 72, (self.height + 4) / 72)
            made.set_layout_engine("none")
            height = self.height + 4
            in_points = Affine2D().scale(1 / self.width, 1 / height) + made.transFigure
            for kind, at in self.things:
                x, y = at["x"] / self.width, 1 - at["y"] / height
                if kind == "text":
                    made.text(x, y, at["text"], fontsize=at["size"], va="baseline", **{"color": INK} | at["look"])
                elif kind == "box":
                    corner = (at["x"], height - at["y"] - at["height"])
                    shape: Any = Rectangle(corner, at["width"], at["height"])
                    if at["radius"]:
                        style = f"round,pad=0,rounding_size={at['radius']}"
                        shape = FancyBboxPatch(corner, at["width"], at["height"], boxstyle=style)
                    shape.set(facecolor=at["colour"], linewidth=0, transform=in_points, zorder=-1)
                    made.add_artist(shape)
                else:
                    low = 1 - (at["y"] + at["height"]) / height
                    axes = made.add_axes((x, low, at["width"] / self.width, at["height"] / height))
                    axes.imshow(
                        np.asarray(at["shown"]), aspect="auto", interpolation="nearest" if at["crisp"] else "none"
                    )
                    axes.set_axis_off()
            return Drawing(made, alt)


# --- one example below the other --------------------------------------------------------------------------------------


def draw_panels(cases: Sequence[Panel], *, contours: bool = False) -> Drawing:
    """All cases below each other."""
    if not cases:
        raise InputError("There is no example to draw.")
    board = Board(PAGE_WIDTH)
    y = 0.0
    for case in cases:
        y = draw_heading(board, y + 11, case)
        y = (draw_image_row if case.is_image else draw_words)(
            board, y, case, **{"contours": contours} if case.is_image else {}
        )
        y += 18
    return board.drawing("; ".join(format_headline(case) for case in cases))


def draw_heading(board: Board, y: float, case: Panel) -> float:
    board.text(0, y, shorten_to_width(format_headline(case), 10.5, PAGE_WIDTH), 10.5, fontweight="bold")
    under = f"by {case.label}" + ("" if case.class_specific else " (the same for every class)")
    parts = [under, case.model, *([case.name] if case.is_image else [])]
    board.text(
        0, y + 12.5, shorten_to_width(" · ".join(part for part in parts if part), 8, PAGE_WIDTH), 8, color=DIM_INK
    )
    return y + 22


def draw_image_row(board: Board, y: float, case: Panel, *, contours: bool = False) -> float:
    """The picture, the map over it, the patches as they are."""
    shown = list(make_panel_images(case, contours=contours))
    side = (PAGE_WIDTH - IMAGE_GAP * 2) / 3
    bottoms = []
    for place, (caption, drawn, crisp) in enumerate(shown):
        x = place * (side + IMAGE_GAP)
        bottom = y + board.place_image(x, y, side, drawn, crisp=crisp)
        board.text(x, bottom + 10, caption, 7.5, color=DIM_INK)
        bottoms.append(bottom + 12)
    y = max(bottoms) + 12
    scale = overlay.choose_colour_scale(case.finest if has_pixel_scores(case) else case.grid, signed=case.signed)
    end = board.bar(0, y, scale.between, signed=case.signed)
    board.text(
        end + 12,
        y,
        shorten_to_width(scale.describe_limits(signed=case.signed), 7.5, PAGE_WIDTH - end - 12),
        7.5,
        color=DIM_INK,
    )
    return y


def has_pixel_scores(case: Panel) -> bool:
    return case.pixels is not None


def make_panel_images(
    case: Panel, *, contours: bool = False, most: int = IMAGE_SIDE
) -> Iterator[tuple[str, Image.Image, bool]]:
    """(caption, picture, whether its squares are to stay sharp) of one case, side by side."""
    maps = [("smooth", case.grid, True), ("patch by patch", case.grid, False)]
    if case.pixels is not None:
        maps[0] = ("pixel by pixel", case.pixels, True)
    if case.image is None or case.image.view is None:
        if case.image is not None:
            yield "the picture", overlay.shrink_image(case.image.image, most), False
        for caption, scores, smooth in maps:
            if not smooth or case.pixels is not None:
                between = overlay.choose_colour_scale(scores, signed=case.signed).between
                yield caption, overlay.paint_map(scores, between, signed=case.signed), True
        return
    kept = case.image
    part = kept.view is not None and overlay.is_partial_view(kept.view, kept.image.size)
    caption = "what the model sees, framed" if part else "the picture"
    yield caption, overlay.shrink_image(overlay.frame_view(kept.image, kept.view), most), False
    for caption, scores, smooth in maps:
        drawn = overlay_panel(case, scores, smooth=smooth, contours=contours and smooth)
        yield caption, overlay.shrink_image(drawn, most), False


def overlay_panel(
    case: Panel,
    scores: Any,
    *,
    smooth: bool,
    contours: bool = False,
    percentile: float | None = overlay.PERCENTILE,
) -> Image.Image:
    """A map of this case over its picture, at the picture's own size."""
    assert case.image is not None
    view = case.image.view
    assert view is not None
    between = overlay.choose_colour_scale(scores, signed=case.signed, percentile=percentile).between
    return overlay.overlay_map(
        case.image.image, scores, view, between, signed=case.signed, smooth=smooth, contours=contours
    )


# --- words ------------------------------------------------------------------------------------------------------------


def draw_words(board: Board, y: float, case: Panel) -> float:
    """The text in lines, every chip on its colour, and a legend."""
    made, tail = make_chips(case.pieces, case.scores)
    between = find_chip_limits(made, signed=case.signed)
    y = draw_chips(board, 0, y + 8, made, between, PAGE_WIDTH, signed=case.signed, tail=tail)
    y += LINE_HEIGHT + 4
    board.bar(0, y, between, signed=case.signed)
    return y


def draw_chips(
    board: Board,
    left: float,
    y: float,
    made: Sequence[Chip],
    between: tuple[float, float],
    width: float,
    *,
    signed: bool,
    tail: str = "",
) -> float:
    """Chips from left to right, line by line; the baseline of the last line."""
    x, blank = left, measure_text(" ", FONT_SIZE)
    for chip in made:
        lines = chip.before.split("\n")
        if len(lines) > 1:
            x, y = left, y + LINE_HEIGHT * (len(lines) - 1)
        dropped = lines[-1].strip()
        x += blank * (len(lines[-1]) - len(lines[-1].lstrip())) if x > left else 0
        if dropped:
            board.text(x, y, dropped, FONT_SIZE, color=DIM_INK)
            x += measure_text(dropped, FONT_SIZE) + blank * (lines[-1][-1:].isspace())
        size = FONT_SIZE * 0.82 if chip.special else FONT_SIZE
        for part in break_word(chip.text, size, width - 2 * CHIP_PADDING):
            wide = measure_text(part, size) + 2 * CHIP_PADDING
            if x > left and x + wide > left + width:
                x, y = left, y + LINE_HEIGHT
            colour: Any = tuple(paint(torch.tensor(chip.score), between, signed=signed).tolist())
            if colour != (255, 255, 255):
                board.box(x, y - 0.95 * FONT_SIZE, wide, 1.32 * FONT_SIZE, to_hex(colour), radius=2)
            style = {"fontstyle": "italic"} if chip.special else {}
            on = INK if colour == (255, 255, 255) else to_hex(choose_ink(colour))
            board.text(x + CHIP_PADDING, y, part, size, color=on, **style)
            x += wide + 0.4
    if tail.strip():
        board.text(x, y, shorten_to_width(tail.strip(), FONT_SIZE, left + width - x), FONT_SIZE, color=DIM_INK)
    return y


def break_word(text: str, size: float, width: float) -> Iterator[str]:
    """A word that is wider than a line, in parts that are not; between letters."""
    if measure_text(text, size) <= width:
        yield text
        return
    part = ""
    for letter in split_letters(text):
        if part and measure_text(part + letter, size) > width:
            yield part
            part = ""
        part += letter
    yield part


@cache
def get_width_cache(size: float) -> dict[str, float]:
    return {}


def measure_text(text: str, size: float) -> float:
    """How wide a text is, in points."""
    known = get_width_cache(1.0)
    for letter in text:
        if letter not in known:
            known[letter] = measure_letter(letter)
    return size * sum(known[letter] for letter in text)


def measure_letter(letter: str) -> float:
    """Of one letter at size 1; what our font has no shape for takes the room that terminals give it."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    font: Any = FT2Font(font_manager.findfont(find_fonts()[0]))
    if not font.get_char_index(ord(letter)):
        return {0: 0.0, 1: 0.6, 2: 1.05}[min(cell_len(letter), 2)]
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


def shorten_to_width(text: str, size: float, width: float) -> str:
    text = make_visible(text)
    if measure_text(text, size) <= width:
        return text
    while text and measure_text(text + "…", size) > width:
        text = text[: max(0, min(len(text) - 1, int(len(text) * 0.97)))]
    return text.rstrip() + "…"


# --- a table of maps or texts -----------------------------------------------------------------------------------------


def draw_panel_table(
    rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str], *, title: str, alt: str
) -> Drawing:
    """Each row with its name, the original first where there is one, then one map a column; texts go line by line."""
    if not rows or not columns:
        raise InputError("There is nothing to put on a sheet.")
    first = rows[0][1][0]
    return (draw_map_table if first.is_image else draw_word_table)(rows, columns, title, alt)


def draw_map_table(
    rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str], title: str, alt: str
) -> Drawing:
    has_picture = rows[0][1][0].image is not None
    across = min(len(columns) + has_picture, 6)
    side = 112.0
    board = Board(across * (side + 10) - 10)
    y = 12.0
    if title:
        board.text(0, y, shorten_to_width(title, 11, board.width), 11, fontweight="bold")
        y += 18
    for name, cases in rows:
        if name:
            board.text(0, y, shorten_to_width(name, 9.5, board.width), 9.5, fontweight="bold")
            y += 8
        cells: list[tuple[str, str, Image.Image, bool]] = []
        kept = cases[0].image
        if kept is not None:
            cells.append(
                ("the picture", "", overlay.shrink_image(overlay.frame_view(kept.image, kept.view), 420), False)
            )
        for column, case in zip(columns, cases, strict=True):
            cells.append((column, format_limits(case), *make_cell_image(case, most=420)))
        for start in range(0, len(cells), across):
            lowest = y
            for place, (caption, under, drawn, crisp) in enumerate(cells[start : start + across]):
                x = place * (side + 10)
                bottom = y + board.place_image(x, y, side, drawn, crisp=crisp)
                board.text(x, bottom + 9.5, shorten_to_width(caption, 7.5, side), 7.5)
                if under:
                    board.text(x, bottom + 18.5, shorten_to_width(under, 6.5, side), 6.5, color=DIM_INK)
                lowest = max(lowest, bottom + 22)
            y = lowest + 8
        y += 8
    note = f"Colours end at the {overlay.PERCENTILE:g}th percentile of each map; blue speaks against, orange for."
    board.text(0, y, shorten_to_width(note, 7, board.width), 7, color=DIM_INK)
    return board.drawing(alt)


def make_cell_image(case: Panel, *, most: int, smooth: bool = True) -> tuple[Image.Image, bool]:
    if case.image is None or case.image.view is None:
        between = overlay.choose_colour_scale(case.grid, signed=case.signed).between
        return overlay.paint_map(case.grid, between, signed=case.signed), True
    return overlay.shrink_image(overlay_panel(case, case.grid, smooth=smooth), most), False


def format_limits(case: Panel) -> str:
    low, high = overlay.choose_colour_scale(case.grid, signed=case.signed).between
    numbers = f"{low:+.2g} to {high:+.2g}" if case.signed else f"{low:.2g} to {high:.2g}"
    return numbers if case.class_specific else f"{numbers}; any class"


def draw_word_table(
    rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str], title: str, alt: str
) -> Drawing:
    longest = min(max(measure_text(make_visible(column), 8) for column in columns) + 12, 150.0)
    board = Board(PAGE_WIDTH + 60)
    y = 12.0
    if title:
        board.text(0, y, shorten_to_width(title, 11, board.width), 11, fontweight="bold")
        y += 20
    for name, cases in rows:
        if name:
            board.text(0, y, shorten_to_width(name, 9.5, board.width), 9.5, fontweight="bold")
            y += 18
        for column, case in zip(columns, cases, strict=True):
            made, tail = make_chips(case.pieces, case.scores)
            between = find_chip_limits(made, signed=case.signed)
            board.text(0, y, shorten_to_width(column, 8, longest - 8), 8)
            y = draw_chips(board, longest, y, made, between, board.width - longest, signed=case.signed, tail=tail) + 13
            board.bar(longest, y, between, signed=case.signed, width=60)
            y += 20
        y += 6
    return board.drawing(alt)


def format_target(case: Panel) -> str:
    return f"{name_target(case.target)} ({format_certainty(case.target)})"
