"""Scores in a terminal: words on coloured backgrounds, maps as half blocks; bars, digits and shades without colour.

Tokens, labels and file names are untrusted: all go through `make_visible` before they are coloured. `render_parts` does
so for everything once more, so that the only control characters of what it returns are its own colours.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

import torch
from rich.color import Color
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from whyformer._engine import Target
from whyformer._plain.tokens import Pieces
from whyformer.show.chips import make_scored_text
from whyformer.show.colours import Colour, choose_ink, find_limits, paint_scores
from whyformer.show.visible import make_lines_visible, make_visible
from whyformer.show.wording import describe_target, format_certainty, format_score, name_target, shorten_text

SHADES = " .:-=+*#%@"
BAR_LENGTH = 12  # characters
MAP_SIZE = 28  # half blocks across a heat map, roughly
DIM_STYLE = Style(dim=True)
SPECIAL_STYLE = Style(dim=True, italic=True)
# On 16 colours: grounds on which an ink of known contrast can be read, of orange, blue and purple scores.
FEW_COLOURS = {"r": Style(color="black", bgcolor="yellow"), "b": Style(color="bright_white", bgcolor="blue")}
UNSIGNED_FEW = Style(color="bright_white", bgcolor="magenta")
HALF_BLOCK = "▀"
PALE = 70  # a ground whose parts differ by less is not drawn on 16 colours


@dataclass(frozen=True)
class Screen:
    """The terminal: its width in cells and its colour system (None: no colour)."""

    width: int
    colours: str | None

    @staticmethod
    def from_stdout() -> "Screen":
        """Standard output; no colour if it is not a terminal or NO_COLOR is set."""
        console = Console()
        plain = not console.is_terminal or console.no_color
        return Screen(console.width, None if plain else console.color_system)

    @staticmethod
    def from_terminal() -> "Screen | None":
        """Standard output if it is a terminal."""
        return Screen.from_stdout() if Console().is_terminal else None


def render_title(target: Target, method: str | None, *, name: str | None, class_specific: bool) -> Text:
    """The target, its probability, and the method."""
    line = Text()
    if name:
        line.append(f"{shorten_text(make_visible(name), 60)}: ")
    line.append(name_target(target), style="bold")
    line.append(describe_target(target).removeprefix(name_target(target)))
    if certainty := format_certainty(target):
        line.append(f" ({certainty})")
    if method is not None:
        line.append(f", by {make_visible(method)}")
    if not class_specific:
        line.append(" (the same for every class)")
    return line


def render_parts(parts: Iterable[RenderableType], screen: Screen) -> str:
    """The parts below each other, as a string for that screen: the content is escaped, and then coloured."""
    console = Console(
        file=StringIO(),
        width=screen.width,
        force_terminal=screen.colours is not None,
        color_system=screen.colours,  # type: ignore[arg-type]
        no_color=screen.colours is None,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        renderable = console.render_str(part) if isinstance(part, str) else part
        drawn = [Segment(make_lines_visible(text), style) for text, style, _ in console.render(renderable)]
        if screen.colours in ("standard", "windows"):
            drawn = [Segment(text, limit_colours(text, style)) for text, style, _ in drawn]
        console.print(Segments(drawn), end="", crop=False)
    lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def limit_colours(text: str, style: Style | None) -> Style | None:
    """The look of a word on a terminal of 16 colours; maps stay as they are."""
    ground = None if style is None or style.bgcolor is None else style.bgcolor.triplet
    if style is None or ground is None or HALF_BLOCK in text:
        return style
    red, green, blue = ground
    if max(ground) - min(ground) < PALE:
        return style.without_color
    return UNSIGNED_FEW if green < min(red, blue) else FEW_COLOURS["r" if red > blue else "b"]


def wrap_lines(text: str, width: int) -> str:
    """Long lines broken at spaces; what follows keeps the indent of the line."""
    wrapped = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))] + ("  " if line.lstrip(" ").startswith("- ") else "")
        wrapped += textwrap.wrap(line, max(width, 20), subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(wrapped)


def render_legend(between: tuple[float, float], *, signed: bool) -> Text:
    """A colour bar between its two limits."""
    low, high = between
    line = Text().append("against " if signed else "", style=DIM_STYLE)
    line.append(f"{format_score(low, signed=signed)} ")
    steps = torch.linspace(low, high, 9, dtype=torch.double)
    for colour in paint_scores(steps, between, signed=signed).tolist():
        line.append(" ", style=choose_text_style(tuple(colour)))
    line.append(f" {format_score(high, signed=signed)}")
    return line.append(" for", style=DIM_STYLE) if signed else line


def choose_text_style(colour: Colour) -> Style:
    """Black or white text on this background, whichever is readable."""
    return Style(color=Color.from_rgb(*choose_ink(colour)), bgcolor=Color.from_rgb(*colour))


# --- text -----------------------------------------------------------------------------------------------------------


def render_words(pieces: Pieces, scores: Tensor, *, signed: bool) -> Text:
    """The text with every chip on the colour of its score; text that belongs to no token has no colour."""
    text = make_scored_text(pieces, scores, signed=signed)
    line = Text()
    for chip in text.chips:
        style = SPECIAL_STYLE  # on no colour: special tokens often score higher than all words
        if not chip.special:
            style = choose_text_style(
                tuple(paint_scores(torch.tensor(chip.score), text.between, signed=signed).tolist())
            )
        if chip.opens:
            line.append(f"{chr(10) if line else ''}{chip.opens}\n", DIM_STYLE)
        line.append(chip.before, DIM_STYLE if chip.before.strip() else None).append(chip.text, style)
    line.append(text.tail, style=DIM_STYLE)
    line.rstrip()
    return line


def render_plain_words(pieces: Pieces, scores: Tensor, *, signed: bool) -> Text:
    """One line per chip: score, bar, text."""
    text = make_scored_text(pieces, scores, signed=signed)
    largest = max(abs(limit) for limit in text.between)
    lines = []
    for chip in text.chips:
        length = min(BAR_LENGTH, round(BAR_LENGTH * (abs(chip.score) / largest))) if largest and not chip.special else 0
        bar = ("-" if chip.score < 0 else "+" if signed else "#") * length
        remark = "  (special)" if chip.special else ""
        lines += [f"{chip.opens}:"] if chip.opens else []
        lines.append(f"{format_score(chip.score, signed=signed):>10} {bar:<{BAR_LENGTH}} {chip.text}{remark}")
    return Text("\n".join(lines))


# --- images ---------------------------------------------------------------------------------------------------------


def render_heat_map(scores: Tensor, *, signed: bool, width: int = 80, size: int = MAP_SIZE) -> Text:
    """A map [rows columns], two rows of colours in each line, enlarged until its longer side is about `size`."""
    between = find_limits(scores, signed=signed)
    scores = shrink_map(scores, width)
    factor = max(1, min(size, width) // max(scores.shape))
    scores = scores.repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    colours = paint_scores(scores, between, signed=signed).tolist()
    colours += [None] * (len(colours) % 2)
    lines = []
    for upper, lower in zip(colours[::2], colours[1::2], strict=True):
        line = Text()
        for column, top in enumerate(upper):
            bottom = Color.from_rgb(*lower[column]) if lower else None
            line.append(HALF_BLOCK, Style(color=Color.from_rgb(*top), bgcolor=bottom))
        lines.append(line)
    return Text("\n").join(lines)


def render_plain_map(scores: Tensor, *, signed: bool, width: int = 80) -> Text:
    """A map [rows columns] in two characters per patch: shades, or digits from -9 to +9 for signed scores."""
    low, high = find_limits(scores, signed=signed)
    scores = shrink_map(scores, width // 2)
    if signed:
        digits = (scores / high * 9).round().long() if high else torch.zeros_like(scores, dtype=torch.long)
        rows = [[f"{digit:+d}" if digit else " ." for digit in row] for row in digits.tolist()]
    else:
        index = (scores - low) / (high - low) if high > low else torch.zeros_like(scores)
        shades = (index * (len(SHADES) - 1)).round().long()
        rows = [[SHADES[shade] * 2 for shade in row] for row in shades.tolist()]
    return Text("\n".join("".join(row) for row in rows))


def shrink_map(scores: Tensor, width: int) -> Tensor:
    """The map, averaged over neighbours until its columns fit the width."""
    rows, columns = scores.shape
    if columns <= width:
        return scores
    smaller = (max(1, rows * width // columns), width)
    return adaptive_avg_pool2d(scores[None].double(), smaller)[0]


def render_plain_legend(between: tuple[float, float], *, signed: bool) -> Text:
    low, high = (format_score(limit, signed=signed) for limit in between)
    return Text(f"-9 is {low} (against), +9 is {high} (for)" if signed else f"'  ' is {low}, '@@' is {high}")


def render_check(lines: Sequence[str]) -> list[Text]:
    """What hiding parts of the input showed: the numbers, and in bold what they speak against."""
    return [Text(make_visible(line), style="bold" if i else "") for i, line in enumerate(lines)]


def render_notes(lines: Sequence[str]) -> list[Text]:
    """The notes, if there are any."""
    return [Text("\n".join(f"note: {make_visible(line)}" for line in lines), style=DIM_STYLE)] if lines else []


# --- one example ------------------------------------------------------------------------------------------------------


def render_text(pieces: Pieces, scores: Tensor, *, signed: bool, screen: Screen) -> list[Text]:
    if screen.colours is None:
        return [render_plain_words(pieces, scores, signed=signed)]
    return [
        render_words(pieces, scores, signed=signed),
        render_legend(make_scored_text(pieces, scores, signed=signed).between, signed=signed),
    ]


def render_map(scores: Tensor, *, signed: bool, screen: Screen) -> list[Text]:
    between = find_limits(scores, signed=signed)
    if screen.colours is None:
        return [
            render_plain_map(scores, signed=signed, width=screen.width),
            render_plain_legend(between, signed=signed),
        ]
    return [render_heat_map(scores, signed=signed, width=screen.width), render_legend(between, signed=signed)]
