"""Static figures of explanations, for a paper or a slide. Words and numbers stay text, also in SVG and PDF.

draw_panels(panels)                each example: the image and its maps, or its words in colour
draw_panel_table(rows, columns)    a table of maps or texts, such as classes x methods
"""

from collections.abc import Iterable, Sequence

import torch
from PIL import Image

from whyformer.errors import InputError
from whyformer.show import overlay, panel_images
from whyformer.show.canvas import Canvas
from whyformer.show.chips import ScoredText
from whyformer.show.colours import WHITE, choose_ink, paint_scores, to_hex
from whyformer.show.drawing import DIM_INK, INK, Drawing
from whyformer.show.panel import Panel
from whyformer.show.text_width import break_word, measure_text, shorten_to_width
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_headline

PAGE_WIDTH = 470.0  # points: the text width of a page
IMAGE_GAP = 14.0
IMAGE_SIDE = 900  # pixels of the longer side of an image in a figure
FONT_SIZE, LINE_HEIGHT, CHIP_PADDING = 10.5, 19.0, 2.2  # of words
SEGMENT_FONT_SIZE, SEGMENT_GAP = 7.5, 3.0  # of the names of the two texts of a pair

CELL_SIDE = 112.0  # points, at most
CELL_GAP = 10.0
CELL_IMAGE_SIDE = 420  # pixels
MAX_COLUMNS = 6  # maps of this size in a line
WHOLE_LINE = 9  # so many maps are made smaller rather than broken into lines

PanelRow = tuple[str, Sequence[Panel]]  # the name of a row and its panels, one per column


# --- one example below the other --------------------------------------------------------------------------------------


def draw_panels(panels: Sequence[Panel], *, contours: bool = False) -> Drawing:
    """All panels below each other; contours: lines of equal score on the smooth map of an image."""
    if not panels:
        raise InputError("There is no example to draw.")
    canvas = Canvas(PAGE_WIDTH)
    y = 0.0
    for panel in panels:
        y = draw_heading(canvas, y + 11, panel)
        for part in panel.drawn:
            if panel.streams:
                canvas.add_fitted_text(0, y + 4, part.label, 8.5, PAGE_WIDTH)
                y += 10
            y = draw_image_row(canvas, y, part, contours=contours) if part.is_image else draw_words(canvas, y, part)
            y += 18
    return canvas.to_drawing("; ".join(format_headline(panel) for panel in panels))


def draw_heading(canvas: Canvas, y: float, panel: Panel) -> float:
    """Headline, method and model. Returns the y below them."""
    canvas.add_title(y, format_headline(panel), 10.5)
    method = f"by {panel.label}" + ("" if panel.class_specific else " (the same for every class)")
    parts = [method, panel.model, *([panel.name] if panel.is_image else [])]
    canvas.add_fitted_text(0, y + 12.5, " · ".join(part for part in parts if part), 8, PAGE_WIDTH, color=DIM_INK)
    if panel.caution:
        y += 11
        canvas.add_fitted_text(0, y + 12.5, panel.caution, 8, PAGE_WIDTH)
    return y + 22


def draw_image_row(canvas: Canvas, y: float, panel: Panel, *, contours: bool = False) -> float:
    """The image, its smooth map and its patch map side by side, and a colour bar. Returns the y of the bar."""
    side = (PAGE_WIDTH - IMAGE_GAP * 2) / 3
    bottoms = []
    images = panel_images.make_panel_images(panel, contours=contours, max_side=IMAGE_SIDE)
    for index, (caption, image, crisp) in enumerate(images):
        x = index * (side + IMAGE_GAP)
        bottom = y + canvas.add_image(x, y, side, image, crisp=crisp)
        canvas.add_text(x, bottom + 10, caption, 7.5, color=DIM_INK)
        bottoms.append(bottom + 12)
    y = max(bottoms) + 12
    scale = overlay.choose_colour_scale(panel.finest, signed=panel.signed)
    end = canvas.add_colour_bar(0, y, scale.between, signed=panel.signed)
    limits = scale.describe_limits(signed=panel.signed)
    canvas.add_fitted_text(end + 12, y, limits, 7.5, PAGE_WIDTH - end - 12, color=DIM_INK)
    return y


def draw_words(canvas: Canvas, y: float, panel: Panel) -> float:
    """The text in lines, every chip on its colour, and a colour bar. Returns the y of the bar."""
    text = panel.scored_text
    y = draw_chips(canvas, 0, y + 8, text, PAGE_WIDTH) + LINE_HEIGHT + 4
    canvas.add_colour_bar(0, y, text.between, signed=text.signed)
    return y


def draw_chips(canvas: Canvas, left: float, y: float, text: ScoredText, width: float) -> float:
    """Chips from left to right, line by line. Returns the baseline of the last line."""
    x, blank = left, measure_text(" ", FONT_SIZE)
    for chip in text.chips:
        lines = chip.before.split("\n")
        if chip.opens:
            y += 0.0 if chip is text.chips[0] else LINE_HEIGHT - SEGMENT_GAP
            canvas.add_text(left, y, chip.opens, SEGMENT_FONT_SIZE, color=DIM_INK)
            x, y = left, y + LINE_HEIGHT - SEGMENT_GAP
        if len(lines) > 1:
            x, y = left, y + LINE_HEIGHT * (len(lines) - 1)
        dropped = lines[-1].strip()  # text that belongs to no token
        x += blank * (len(lines[-1]) - len(lines[-1].lstrip())) if x > left else 0
        if dropped:
            canvas.add_text(x, y, dropped, FONT_SIZE, color=DIM_INK)
            x += measure_text(dropped, FONT_SIZE) + blank * (lines[-1][-1:].isspace())
        size = FONT_SIZE * 0.82 if chip.special else FONT_SIZE
        red, green, blue = paint_scores(torch.tensor(chip.score), text.between, signed=text.signed).tolist()
        ground, is_white = to_hex((red, green, blue)), (red, green, blue) == WHITE
        ink = INK if is_white else to_hex(choose_ink((red, green, blue)))
        style = {"fontstyle": "italic"} if chip.special else {}
        for part in break_word(chip.text, size, width - 2 * CHIP_PADDING):
            part_width = measure_text(part, size) + 2 * CHIP_PADDING
            if x > left and x + part_width > left + width:
                x, y = left, y + LINE_HEIGHT
            if not is_white:
                canvas.add_box(x, y - 0.95 * FONT_SIZE, part_width, 1.32 * FONT_SIZE, ground, radius=2)
            canvas.add_text(x + CHIP_PADDING, y, part, size, color=ink, **style)
            x += part_width + 0.4
    if text.tail.strip():
        canvas.add_fitted_text(x, y, text.tail.strip(), FONT_SIZE, left + width - x, color=DIM_INK)
    return y


# --- a table of maps or texts -----------------------------------------------------------------------------------------


def draw_panel_table(rows: Sequence[PanelRow], columns: Sequence[str], *, title: str, alt: str) -> Drawing:
    """Each row: the original image, then one map per column; or the texts of all columns below each other."""
    if not rows or not columns:
        raise InputError("There is nothing to draw: the table has no rows or no columns.")
    first = rows[0][1][0]
    return (draw_map_table if first.is_image else draw_word_table)(rows, columns, title, alt)


def draw_map_table(rows: Sequence[PanelRow], columns: Sequence[str], title: str, alt: str) -> Drawing:
    has_image = rows[0][1][0].image is not None
    across = count_across(len(columns) + has_image)
    side = min(CELL_SIDE, (MAX_COLUMNS + 1) * (CELL_SIDE + CELL_GAP) / across - CELL_GAP)
    canvas = Canvas(across * (side + CELL_GAP) - CELL_GAP)
    y = draw_name(canvas, 12.0, title, 11, space=18)
    for name, panels in rows:
        y = draw_name(canvas, y, name, 9.5, space=8)
        maps = list_map_cells(panels, columns)
        y = draw_image_grid(canvas, y, maps, across, side=side, gap=CELL_GAP) + 8
    colours = describe_map_colours(panel for _, panels in rows for panel in panels)
    note = f"Colours are clipped at the {overlay.PERCENTILE:g}th percentile of each map; {colours}."
    canvas.add_small_print(y, note)
    return canvas.to_drawing(alt)


def count_across(cells: int) -> int:
    """How many maps stand in a line: all of up to WHOLE_LINE, else lines of about the same length."""
    return cells if cells <= WHOLE_LINE else -(-cells // -(-cells // MAX_COLUMNS))


def describe_map_colours(panels: Iterable[Panel]) -> str:
    """What the colours of these maps mean."""
    kinds = {panel.signed for panel in panels}
    meanings = ["orange is for, blue against"] * (True in kinds)
    meanings += ["the darker the purple, the higher the score"] * (False in kinds)
    return "; ".join(meanings)


def draw_name(canvas: Canvas, y: float, name: str, size: float, *, space: float) -> float:
    """The title of a table or the name of a row, if any. Returns the y below it."""
    if not name:
        return y
    canvas.add_title(y, name, size)
    return y + space


ImageCell = tuple[str, str, Image.Image, bool]  # caption, smaller line below it, image, crisp


def list_map_cells(panels: Sequence[Panel], columns: Sequence[str]) -> list[ImageCell]:
    """The original image, if there is one, and the map of every column."""
    cells: list[ImageCell] = []
    kept = panels[0].image
    if kept is not None:
        original = panel_images.make_original_image(kept, max_side=CELL_IMAGE_SIDE)
        cells.append((panel_images.describe_original(kept), "", original, False))
    for column, panel in zip(columns, panels, strict=True):
        image, crisp = panel_images.make_cell_image(panel, max_side=CELL_IMAGE_SIDE)
        cells.append((column, panel_images.format_limits(panel), image, crisp))
    return cells


def draw_image_grid(
    canvas: Canvas, y: float, cells: Sequence[ImageCell], across: int, *, side: float, gap: float
) -> float:
    """Images with their captions, `across` in a line. Returns the y below them."""
    for start in range(0, len(cells), across):
        lowest = y
        for index, (caption, below, image, crisp) in enumerate(cells[start : start + across]):
            x = index * (side + gap)
            bottom = y + canvas.add_image(x, y, side, image, crisp=crisp)
            canvas.add_fitted_text(x, bottom + 9.5, caption, 7.5, side)
            if below:
                canvas.add_fitted_text(x, bottom + 18.5, below, 6.5, side, color=DIM_INK)
            lowest = max(lowest, bottom + 22)
        y = lowest + 8
    return y


def draw_word_table(rows: Sequence[PanelRow], columns: Sequence[str], title: str, alt: str) -> Drawing:
    indent = min(max(measure_text(make_visible(column), 8) for column in columns) + 12, 150.0)
    canvas = Canvas(PAGE_WIDTH + 60)
    y = draw_name(canvas, 12.0, title, 11, space=20)
    for name, panels in rows:
        y = draw_name(canvas, y, name, 9.5, space=18)
        for column, panel in zip(columns, panels, strict=True):
            text = panel.scored_text
            canvas.add_text(0, y, shorten_to_width(column, 8, indent - 8), 8)
            y = draw_chips(canvas, indent, y, text, canvas.width - indent) + 13
            canvas.add_colour_bar(indent, y, text.between, signed=text.signed, width=60)
            y += 20
        y += 6
    return canvas.to_drawing(alt)
