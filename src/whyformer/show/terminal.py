"""Scores in a terminal: words on a coloured ground, patches as half blocks; bars, digits and shades without colour.

Tokens, labels and file names may come from anybody: none is printed without `visible`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO

import torch
from rich.color import Color
from rich.console import Console, RenderableType
from rich.style import Style
from rich.text import Text
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from whyformer.show.chips import chip_limits, chips
from whyformer.show.colours import Colour, ink, limits, paint
from whyformer.show.said import asked, called, certainty, shortened
from whyformer.show.visible import visible
from whyformer.target import Target
from whyformer.tokens import Pieces

SHADES = " .:-=+*#%@"
BAR = 12  # characters of the longest bar
MAP = 28  # about as many half blocks across a heat map
QUIET = Style(dim=True)


@dataclass(frozen=True)
class Screen:
    """Where text goes: how wide it is, and which colours it has (None: none)."""

    width: int
    colours: str | None

    @staticmethod
    def here() -> "Screen":
        """Standard output as it is; colourless if it is no terminal or NO_COLOR is set."""
        console = Console()
        plain = not console.is_terminal or console.no_color
        return Screen(console.width, None if plain else console.color_system)


def number(score: float, *, signed: bool) -> str:
    return f"{score:+.3g}" if signed else f"{score:.3g}"


def title(target: Target, method: str | None, *, name: str | None, class_specific: bool) -> Text:
    """What is explained, how sure the model is of it, and by which method."""
    line = Text()
    if name:
        line.append(f"{shortened(visible(name), 60)}: ")
    line.append(called(target), style="bold")
    line.append(asked(target).removeprefix(called(target)))
    line.append(f" ({certainty(target)})")
    if method is not None:
        line.append(f", by {visible(method)}")
    if not class_specific:
        line.append(" (the same for every class)")
    return line


def printed(parts: Iterable[RenderableType], screen: Screen) -> str:
    """The parts below one another, as a string for that screen."""
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
        console.print(part)
    lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def legend(between: tuple[float, float], *, signed: bool) -> Text:
    """The two limits, and the colours between them."""
    low, high = between
    line = Text().append("against " if signed else "", style=QUIET)
    line.append(f"{number(low, signed=signed)} ")
    steps = torch.linspace(low, high, 9, dtype=torch.double)
    for colour in paint(steps, between, signed=signed).tolist():
        line.append(" ", style=ground(tuple(colour)))
    line.append(f" {number(high, signed=signed)}")
    return line.append(" for", style=QUIET) if signed else line


def ground(colour: Colour) -> Style:
    """Readable text on that background."""
    return Style(color=Color.from_rgb(*ink(colour)), bgcolor=Color.from_rgb(*colour))


# --- a text ---------------------------------------------------------------------------------------------------------


def words(pieces: Pieces, scores: Tensor, *, signed: bool) -> Text:
    """The text with every chip on the colour of its score.

    What the tokenizer dropped from the text stands between the chips without colour.
    """
    made, tail = chips(pieces, scores)
    between = chip_limits(made, signed=signed)
    line = Text()
    for chip in made:
        style = ground(tuple(paint(torch.tensor(chip.score), between, signed=signed).tolist()))
        if chip.special:
            style += Style(italic=True)
        line.append(chip.before, QUIET if chip.before.strip() else None).append(chip.text, style)
    line.append(tail, style=QUIET)
    line.rstrip()
    return line


def word_limits(pieces: Pieces, scores: Tensor, *, signed: bool) -> tuple[float, float]:
    return chip_limits(chips(pieces, scores)[0], signed=signed)


def shown(pieces: Pieces, i: int) -> str:
    """The characters piece i covers, or its own name where it covers none."""
    span = pieces.spans[i]
    characters = pieces.text[span[0] : span[1]] if span is not None and pieces.text is not None else ""
    return characters if characters.strip() else pieces.pieces[i]


def plain_words(pieces: Pieces, scores: Tensor, *, signed: bool) -> Text:
    """One line a chip: score, bar, characters."""
    made, _ = chips(pieces, scores)
    low, high = chip_limits(made, signed=signed)
    most = max(abs(low), abs(high))
    lines = []
    for chip in made:
        length = min(BAR, round(BAR * abs(chip.score) / most)) if most else 0
        bar = ("-" if chip.score < 0 else "+" if signed else "#") * length
        remark = "  (special)" if chip.special else ""
        lines.append(f"{number(chip.score, signed=signed):>10} {bar:<{BAR}} {chip.text}{remark}")
    return Text("\n".join(lines))


# --- a picture ------------------------------------------------------------------------------------------------------


def heat_map(scores: Tensor, *, signed: bool, width: int = 80, size: int = MAP) -> Text:
    """A map [rows columns], two rows of colour to a line."""
    between = limits(scores, signed=signed)
    scores = enlarged(fitted(scores, width), min(size, width))
    colours = paint(scores, between, signed=signed).tolist()
    colours += [None] * (len(colours) % 2)
    lines = []
    for upper, lower in zip(colours[::2], colours[1::2], strict=True):
        line = Text()
        for column, top in enumerate(upper):
            bottom = Color.from_rgb(*lower[column]) if lower else None
            line.append("▀", Style(color=Color.from_rgb(*top), bgcolor=bottom))
        lines.append(line)
    return Text("\n").join(lines)


def plain_map(scores: Tensor, *, signed: bool, width: int = 80) -> Text:
    """A map [rows columns] in two characters a patch: shades, or tenths of the largest magnitude with their sign."""
    low, high = limits(scores, signed=signed)
    scores = fitted(scores, width // 2)
    if signed:
        tenths = (scores / high * 9).round().long() if high else torch.zeros_like(scores, dtype=torch.long)
        rows = [[f"{tenth:+d}" if tenth else " ." for tenth in row] for row in tenths.tolist()]
    else:
        place = (scores - low) / (high - low) if high > low else torch.zeros_like(scores)
        shades = (place * (len(SHADES) - 1)).round().long()
        rows = [[SHADES[shade] * 2 for shade in row] for row in shades.tolist()]
    return Text("\n".join("".join(row) for row in rows))


def fitted(scores: Tensor, width: int) -> Tensor:
    """The map, averaged over neighbours if it has more columns than fit."""
    rows, columns = scores.shape
    if columns <= width:
        return scores
    smaller = (max(1, rows * width // columns), width)
    return adaptive_avg_pool2d(scores[None].double(), smaller)[0]


def enlarged(scores: Tensor, size: int) -> Tensor:
    factor = max(1, size // max(scores.shape))
    return scores.repeat_interleave(factor, 0).repeat_interleave(factor, 1)


def plain_legend(between: tuple[float, float], *, signed: bool) -> Text:
    low, high = (number(limit, signed=signed) for limit in between)
    return Text(f"-9 is {low} (against), +9 is {high} (for)" if signed else f"'  ' is {low}, '@@' is {high}")


def notes(lines: Iterable[str]) -> Text:
    return Text("\n".join(f"note: {visible(line)}" for line in lines), style=QUIET)


# --- put together -----------------------------------------------------------------------------------------------------


def text_parts(pieces: Pieces, scores: Tensor, *, signed: bool, screen: Screen) -> list[Text]:
    if screen.colours is None:
        return [plain_words(pieces, scores, signed=signed)]
    return [words(pieces, scores, signed=signed), legend(word_limits(pieces, scores, signed=signed), signed=signed)]


def map_parts(scores: Tensor, *, signed: bool, screen: Screen) -> list[Text]:
    between = limits(scores, signed=signed)
    if screen.colours is None:
        return [plain_map(scores, signed=signed, width=screen.width), plain_legend(between, signed=signed)]
    return [heat_map(scores, signed=signed, width=screen.width), legend(between, signed=signed)]
