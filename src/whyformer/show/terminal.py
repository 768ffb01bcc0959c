"""Scores in a terminal: words on a coloured ground, patches as half blocks; bars, digits and shades without colour.

Tokens, labels and file names may come from anybody: none is printed without `visible`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import groupby

import torch
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console, RenderableType
from rich.style import Style
from rich.text import Text
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from whyformer.show.colours import Colour, ink, limits, paint
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


def shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 3).rstrip() + "..."


def number(score: float, *, signed: bool) -> str:
    return f"{score:+.3g}" if signed else f"{score:.3g}"


def title(target: Target, method: str | None, *, name: str | None, class_specific: bool) -> Text:
    """What is explained, how sure the model is of it, and by which method."""
    line = Text()
    if name:
        line.append(f"{shortened(visible(name), 60)}: ")
    is_token = target.position is not None
    line.append(called(target.index, target.label, is_token), style="bold")
    if target.versus is not None:
        line.append(f" rather than {called(target.versus, target.versus_label or '', is_token)}")
    line.append(f" ({', '.join(remarks(target))})")
    if method is not None:
        line.append(f", by {visible(method)}")
    if not class_specific:
        line.append(" (the same for every class)")
    return line


def called(index: int, label: str, is_token: bool) -> str:
    """A class by its label, a token in quotes since blanks count, either by its number if it has no name."""
    if is_token:
        return f"'{visible(label)}'"
    return f"class {index}" if label in ("", str(index)) else shortened(visible(label), 60)


def remarks(target: Target) -> Iterator[str]:
    if target.versus is not None:
        yield f"difference {target.score:+.3g}"
    elif target.probability is not None:
        yield f"{target.probability:.1%}"
    else:
        yield f"output {target.score:.3g}"
    if not target.predicted:
        yield "not what the model answers"


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
    """The text with every piece on the colour of its score.

    The limits are those of the words: a special token, which often gets most, does not make all others pale. What the
    tokenizer dropped from the text stands between the pieces without colour.
    """
    between = word_limits(pieces, scores, signed=signed)
    line = Text()
    at = 0  # how far into the text we are
    for chip in chips(pieces):
        first = chip[0]
        style = ground(tuple(paint(scores[chip].sum(), between, signed=signed).tolist()))
        if pieces.special[first]:
            style += Style(italic=True)
        span = pieces.spans[first]
        if span is None or pieces.text is None:
            separate(line)
            line.append(visible(pieces.pieces[first]), style).append(" ")
        else:
            line.append(between_words(pieces.text[at : span[0]]), QUIET)
            line.append(visible(shown(pieces, first)), style)
            at = max(at, span[1])
    if pieces.text is not None:
        line.append(between_words(pieces.text[at:]), style=QUIET)
    line.rstrip()
    return line


def chips(pieces: Pieces) -> Iterator[list[int]]:
    """The pieces that are drawn as one: those of the very same characters, such as the bytes of one emoji."""

    def characters(i: int) -> tuple[int, int] | int:
        span = pieces.spans[i]
        return i if span is None or span[0] == span[1] else span

    drawn = (i for i in range(len(pieces)) if not pieces.padding[i])
    return (list(together) for _, together in groupby(drawn, key=characters))


def word_limits(pieces: Pieces, scores: Tensor, *, signed: bool) -> tuple[float, float]:
    real = ~torch.tensor(pieces.padding, dtype=torch.bool)
    ordinary = real & ~torch.tensor(pieces.special, dtype=torch.bool)
    return limits(scores[ordinary if ordinary.any() else real], signed=signed, floor=0.0)


def shown(pieces: Pieces, i: int) -> str:
    """The characters piece i covers, or its own name where it covers none."""
    span = pieces.spans[i]
    characters = pieces.text[span[0] : span[1]] if span is not None and pieces.text is not None else ""
    return characters if characters.strip() else pieces.pieces[i]


def separate(line: Text) -> None:
    if line.plain and not line.plain[-1].isspace():
        line.append(" ")


def between_words(text: str) -> str:
    """Spaces and line ends as they are, the rest made visible."""
    return "\n".join(visible(part.replace("\t", " ").removesuffix("\r")) for part in text.split("\n"))


def plain_words(pieces: Pieces, scores: Tensor, *, signed: bool) -> Text:
    """One line a piece: score, bar, characters."""
    low, high = word_limits(pieces, scores, signed=signed)
    most = max(abs(low), abs(high))
    lines = []
    for i, score in enumerate(scores.tolist()):
        if pieces.padding[i]:
            continue
        length = min(BAR, round(BAR * abs(score) / most)) if most else 0
        bar = ("-" if score < 0 else "+" if signed else "#") * length
        remark = "  (special)" if pieces.special[i] else ""
        lines.append(f"{number(score, signed=signed):>10} {bar:<{BAR}} {visible(shown(pieces, i))}{remark}")
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
