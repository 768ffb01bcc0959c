"""How wide text is in a figure, in points; cutting and wrapping text to a width."""

from collections.abc import Iterator
from functools import cache

from rich.cells import cell_len

from whyformer.show.chips import split_letters
from whyformer.show.drawing import find_fonts
from whyformer.show.visible import make_visible


def measure_text(text: str, size: float) -> float:
    """The width of a text at this font size."""
    return size * sum(measure_letter(letter) for letter in text)


@cache
def measure_letter(letter: str) -> float:
    """The width of one letter at font size 1; a letter our font lacks counts by its terminal cells."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    font = FT2Font(font_manager.findfont(find_fonts()[0]))
    if not font.get_char_index(ord(letter)):
        return {0: 0.0, 1: 0.6, 2: 1.05}[min(cell_len(letter), 2)]
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


def shorten_to_width(text: str, size: float, width: float) -> str:
    """The text, safe to draw and cut with an ellipsis where it is too wide."""
    text = make_visible(text)
    if measure_text(text, size) <= width:
        return text
    while text and measure_text(text + "…", size) > width:
        text = text[: max(0, min(len(text) - 1, int(len(text) * 0.97)))]
    return text.rstrip() + "…"


def break_word(text: str, size: float, width: float) -> Iterator[str]:
    """A word in parts that fit the width, cut between letters."""
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


def wrap_text(text: str, size: float, width: float) -> list[str]:
    """The text in lines that fit the width, broken at spaces."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if measure_text(longer, size) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
