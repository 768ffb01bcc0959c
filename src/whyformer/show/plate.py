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
from whyformer.show import image
from whyformer.show.case import Case
from whyformer.show.chips import Chip, chip_limits, chips, letters
from whyformer.show.colours import hexadecimal, ink, paint
from whyformer.show.drawing import DIM, INK, LINE, Drawing, figure, fonts, styled
from whyformer.show.said import called, certainty, headline
from whyformer.show.visible import visible

WIDTH = 470.0  # points: the text width of a page
GAP = 14.0
SHARP = 900  # pixels of the longer side of a picture in a figure
SIZE, LINE_HEIGHT, PAD = 10.5, 19.0, 2.2  # of words


class Board:
    """Where things are placed; y grows downwards."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.things: list[tuple[str, dict[str, Any]]] = []

    def text(self, x: float, y: float, text: str, size: float = 9, **look: Any) -> None:
        """y is the baseline."""
        self.add("text", y + 0.3 * size, x=x, y=y, text=visible(text), size=size, look=look)

    def box(self, x: float, y: float, width: float, height: float, colour: str, radius: float = 0.0) -> None:
        self.add("box", y + height, x=x, y=y, width=width, height=height, colour=colour, radius=radius)

    def picture(self, x: float, y: float, width: float, shown: Image.Image, *, crisp: bool = False) -> float:
        """The height it takes."""
        height = width * shown.height / shown.width
        self.add("picture", y + height, x=x, y=y, width=width, height=height, shown=shown, crisp=crisp)
        return height

    def bar(self, x: float, y: float, between: tuple[float, float], *, signed: bool, width: float = 90.0) -> float:
        """A colour bar with its two limits in numbers; where it ends."""
        low, high = (f"{limit:+.2g}" if signed else f"{limit:.2g}" for limit in between)
        low, high = (f"{low} against", f"{high} for") if signed else (low, high)
        start = x + measured(low, 7.5) + 4
        self.text(x, y, low, 7.5, color=DIM)
        steps = torch.linspace(0, 1, 65, dtype=torch.double)
        colours = paint(steps, (0.0, 1.0), signed=signed).numpy()[None]
        self.box(start - 0.4, y - 6.2, width + 0.8, 6.8, LINE)
        self.add("picture", y, x=start, y=y - 5.8, width=width, height=6.0, shown=Image.fromarray(colours), crisp=False)
        self.text(start + width + 4, y, high, 7.5, color=DIM)
        return start + width + 4 + measured(high, 7.5)

    def add(self, kind: str, bottom: float, **facts: Any) -> None:
        self.things.append((kind, facts))
        self.height = max(self.height, bottom)

    def drawing(self, alt: str) -> Drawing:
        from matplotlib.patches import FancyBboxPatch, Rectangle
        from matplotlib.transforms import Affine2D

        with styled():
            made = figure(self.width / 72, (self.height + 4) / 72)
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


def plate(cases: Sequence[Case], *, contours: bool = False) -> Drawing:
    """All cases below each other."""
    if not cases:
        raise InputError("There is no example to draw.")
    board = Board(WIDTH)
    y = 0.0
    for case in cases:
        y = heading(board, y + 11, case)
        y = (picture_row if case.is_picture else word_lines)(
            board, y, case, **{"contours": contours} if case.is_picture else {}
        )
        y += 18
    return board.drawing("; ".join(headline(case) for case in cases))


def heading(board: Board, y: float, case: Case) -> float:
    board.text(0, y, shortened(headline(case), 10.5, WIDTH), 10.5, fontweight="bold")
    under = f"by {case.label}" + ("" if case.class_specific else " (the same for every class)")
    parts = [under, case.model, *([case.name] if case.is_picture else [])]
    board.text(0, y + 12.5, shortened(" · ".join(part for part in parts if part), 8, WIDTH), 8, color=DIM)
    return y + 22


def picture_row(board: Board, y: float, case: Case, *, contours: bool = False) -> float:
    """The picture, the map over it, the patches as they are."""
    shown = list(pictures_of(case, contours=contours))
    side = (WIDTH - GAP * 2) / 3
    bottoms = []
    for place, (caption, drawn, crisp) in enumerate(shown):
        x = place * (side + GAP)
        bottom = y + board.picture(x, y, side, drawn, crisp=crisp)
        board.text(x, bottom + 10, caption, 7.5, color=DIM)
        bottoms.append(bottom + 12)
    y = max(bottoms) + 12
    scale = image.scale(case.finest if is_by_pixel(case) else case.grid, signed=case.signed)
    end = board.bar(0, y, scale.between, signed=case.signed)
    board.text(end + 12, y, shortened(scale.why(signed=case.signed), 7.5, WIDTH - end - 12), 7.5, color=DIM)
    return y


def is_by_pixel(case: Case) -> bool:
    return case.pixels is not None


def pictures_of(case: Case, *, contours: bool = False, most: int = SHARP) -> Iterator[tuple[str, Image.Image, bool]]:
    """(caption, picture, whether its squares are to stay sharp) of one case, side by side."""
    maps = [("smooth", case.grid, True), ("patch by patch", case.grid, False)]
    if case.pixels is not None:
        maps[0] = ("pixel by pixel", case.pixels, True)
    if case.picture is None or case.picture.view is None:
        if case.picture is not None:
            yield "the picture", image.fitted(case.picture.image, most), False
        for caption, scores, smooth in maps:
            if not smooth or case.pixels is not None:
                between = image.scale(scores, signed=case.signed).between
                yield caption, image.alone(scores, between, signed=case.signed), True
        return
    kept = case.picture
    part = kept.view is not None and image.is_part(kept.view, kept.image.size)
    caption = "what the model sees, framed" if part else "the picture"
    yield caption, image.fitted(image.framed(kept.image, kept.view), most), False
    for caption, scores, smooth in maps:
        drawn = over(case, scores, smooth=smooth, contours=contours and smooth)
        yield caption, image.fitted(drawn, most), False


def over(
    case: Case,
    scores: Any,
    *,
    smooth: bool,
    contours: bool = False,
    percentile: float | None = image.PERCENTILE,
) -> Image.Image:
    """A map of this case over its picture, at the picture's own size."""
    assert case.picture is not None
    view = case.picture.view
    assert view is not None
    between = image.scale(scores, signed=case.signed, percentile=percentile).between
    return image.overlay(
        case.picture.image, scores, view, between, signed=case.signed, smooth=smooth, contours=contours
    )


# --- words ------------------------------------------------------------------------------------------------------------


def word_lines(board: Board, y: float, case: Case) -> float:
    """The text in lines, every chip on its colour, and a legend."""
    made, tail = chips(case.pieces, case.scores)
    between = chip_limits(made, signed=case.signed)
    y = flow(board, 0, y + 8, made, between, WIDTH, signed=case.signed, tail=tail)
    y += LINE_HEIGHT + 4
    board.bar(0, y, between, signed=case.signed)
    return y


def flow(
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
    x, blank = left, measured(" ", SIZE)
    for chip in made:
        lines = chip.before.split("\n")
        if len(lines) > 1:
            x, y = left, y + LINE_HEIGHT * (len(lines) - 1)
        dropped = lines[-1].strip()
        x += blank * (len(lines[-1]) - len(lines[-1].lstrip())) if x > left else 0
        if dropped:
            board.text(x, y, dropped, SIZE, color=DIM)
            x += measured(dropped, SIZE) + blank * (lines[-1][-1:].isspace())
        size = SIZE * 0.82 if chip.special else SIZE
        for part in broken(chip.text, size, width - 2 * PAD):
            wide = measured(part, size) + 2 * PAD
            if x > left and x + wide > left + width:
                x, y = left, y + LINE_HEIGHT
            colour: Any = tuple(paint(torch.tensor(chip.score), between, signed=signed).tolist())
            if colour != (255, 255, 255):
                board.box(x, y - 0.95 * SIZE, wide, 1.32 * SIZE, hexadecimal(colour), radius=2)
            style = {"fontstyle": "italic"} if chip.special else {}
            on = INK if colour == (255, 255, 255) else hexadecimal(ink(colour))
            board.text(x + PAD, y, part, size, color=on, **style)
            x += wide + 0.4
    if tail.strip():
        board.text(x, y, shortened(tail.strip(), SIZE, left + width - x), SIZE, color=DIM)
    return y


def broken(text: str, size: float, width: float) -> Iterator[str]:
    """A word that is wider than a line, in parts that are not; between letters."""
    if measured(text, size) <= width:
        yield text
        return
    part = ""
    for letter in letters(text):
        if part and measured(part + letter, size) > width:
            yield part
            part = ""
        part += letter
    yield part


@cache
def advances(size: float) -> dict[str, float]:
    return {}


def measured(text: str, size: float) -> float:
    """How wide a text is, in points."""
    known = advances(1.0)
    for letter in text:
        if letter not in known:
            known[letter] = advance(letter)
    return size * sum(known[letter] for letter in text)


def advance(letter: str) -> float:
    """Of one letter at size 1; what our font has no shape for takes the room that terminals give it."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    font: Any = FT2Font(font_manager.findfont(fonts()[0]))
    if not font.get_char_index(ord(letter)):
        return {0: 0.0, 1: 0.6, 2: 1.05}[min(cell_len(letter), 2)]
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


def shortened(text: str, size: float, width: float) -> str:
    text = visible(text)
    if measured(text, size) <= width:
        return text
    while text and measured(text + "…", size) > width:
        text = text[: max(0, min(len(text) - 1, int(len(text) * 0.97)))]
    return text.rstrip() + "…"


# --- a table of maps or texts -----------------------------------------------------------------------------------------


def sheet(rows: Sequence[tuple[str, Sequence[Case]]], columns: Sequence[str], *, title: str, alt: str) -> Drawing:
    """Each row with its name, the original first where there is one, then one map a column; texts go line by line."""
    if not rows or not columns:
        raise InputError("There is nothing to put on a sheet.")
    first = rows[0][1][0]
    return (map_sheet if first.is_picture else word_sheet)(rows, columns, title, alt)


def map_sheet(rows: Sequence[tuple[str, Sequence[Case]]], columns: Sequence[str], title: str, alt: str) -> Drawing:
    has_picture = rows[0][1][0].picture is not None
    across = min(len(columns) + has_picture, 6)
    side = 112.0
    board = Board(across * (side + 10) - 10)
    y = 12.0
    if title:
        board.text(0, y, shortened(title, 11, board.width), 11, fontweight="bold")
        y += 18
    for name, cases in rows:
        if name:
            board.text(0, y, shortened(name, 9.5, board.width), 9.5, fontweight="bold")
            y += 8
        cells: list[tuple[str, str, Image.Image, bool]] = []
        kept = cases[0].picture
        if kept is not None:
            cells.append(("the picture", "", image.fitted(image.framed(kept.image, kept.view), 420), False))
        for column, case in zip(columns, cases, strict=True):
            cells.append((column, limits_said(case), *cell_picture(case, most=420)))
        for start in range(0, len(cells), across):
            lowest = y
            for place, (caption, under, drawn, crisp) in enumerate(cells[start : start + across]):
                x = place * (side + 10)
                bottom = y + board.picture(x, y, side, drawn, crisp=crisp)
                board.text(x, bottom + 9.5, shortened(caption, 7.5, side), 7.5)
                if under:
                    board.text(x, bottom + 18.5, shortened(under, 6.5, side), 6.5, color=DIM)
                lowest = max(lowest, bottom + 22)
            y = lowest + 8
        y += 8
    note = f"Colours end at the {image.PERCENTILE:g}th percentile of each map; blue speaks against, orange for."
    board.text(0, y, shortened(note, 7, board.width), 7, color=DIM)
    return board.drawing(alt)


def cell_picture(case: Case, *, most: int, smooth: bool = True) -> tuple[Image.Image, bool]:
    if case.picture is None or case.picture.view is None:
        between = image.scale(case.grid, signed=case.signed).between
        return image.alone(case.grid, between, signed=case.signed), True
    return image.fitted(over(case, case.grid, smooth=smooth), most), False


def limits_said(case: Case) -> str:
    low, high = image.scale(case.grid, signed=case.signed).between
    numbers = f"{low:+.2g} to {high:+.2g}" if case.signed else f"{low:.2g} to {high:.2g}"
    return numbers if case.class_specific else f"{numbers}; any class"


def word_sheet(rows: Sequence[tuple[str, Sequence[Case]]], columns: Sequence[str], title: str, alt: str) -> Drawing:
    longest = min(max(measured(visible(column), 8) for column in columns) + 12, 150.0)
    board = Board(WIDTH + 60)
    y = 12.0
    if title:
        board.text(0, y, shortened(title, 11, board.width), 11, fontweight="bold")
        y += 20
    for name, cases in rows:
        if name:
            board.text(0, y, shortened(name, 9.5, board.width), 9.5, fontweight="bold")
            y += 18
        for column, case in zip(columns, cases, strict=True):
            made, tail = chips(case.pieces, case.scores)
            between = chip_limits(made, signed=case.signed)
            board.text(0, y, shortened(column, 8, longest - 8), 8)
            y = flow(board, longest, y, made, between, board.width - longest, signed=case.signed, tail=tail) + 13
            board.bar(longest, y, between, signed=case.signed, width=60)
            y += 20
        y += 6
    return board.drawing(alt)


def target_row(case: Case) -> str:
    return f"{called(case.target)} ({certainty(case.target)})"
