"""Chips: a text cut into pieces that are drawn on a colour, each with its score. No letter is ever cut in two.

Pieces that cover the same characters (the bytes of one emoji), and pieces whose border is inside what a reader sees
as one letter (a vowel sign, an accent, a flag, a family emoji), become one chip with the sum of their scores.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import regex
import torch
from torch import Tensor

from whyformer._plain.tokens import Pieces
from whyformer.show.colours import find_limits
from whyformer.show.visible import JOINERS, make_visible

GRAPHEME = regex.compile(r"\X")
UNKNOWN_MARK = " [unknown]"  # behind a part of a text that the model cannot read
VIRAMA = 9  # combining class of the sign that joins two Indic consonants into one letter

BLANK_SIGNS = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": "⇥", " ": "␣"})  # instead of a tokenizer's own, such as Ċ


@dataclass(frozen=True)
class Chip:
    """One stretch of text on one colour. `text` and `before` are safe to print."""

    text: str
    score: float
    special: bool
    before: str  # the text between the previous chip and this one
    positions: tuple[int, ...]  # indices of its pieces
    opens: str = ""  # the name of the text of a pair that begins here


@dataclass(frozen=True)
class ScoredText:
    """A text with its scores, ready to draw."""

    chips: tuple[Chip, ...]
    tail: str  # the text after the last chip
    between: tuple[float, float]  # the scores that get the first and the last colour
    signed: bool


def make_scored_text(pieces: Pieces, scores: Tensor, *, signed: bool) -> ScoredText:
    chips, tail = make_chips(pieces, scores)
    chips = name_segments(pieces, chips)
    return ScoredText(tuple(chips), tail, find_chip_limits(chips, signed=signed), signed)


def find_chip_limits(chips: Sequence[Chip], *, signed: bool) -> tuple[float, float]:
    """Colour limits from the words alone: special tokens often score highest and would make all words pale."""
    ordinary = [chip.score for chip in chips if not chip.special] or [chip.score for chip in chips]
    return find_limits(torch.tensor(ordinary, dtype=torch.double), signed=signed, floor=0.0)


def make_chips(pieces: Pieces, scores: Tensor) -> tuple[list[Chip], str]:
    """The chips of a text without its padding, and the text after the last chip."""
    chips: list[Chip] = []
    at = 0  # how far into the text we are
    values = scores.tolist()
    for group in group_by_letter(pieces):
        name, special = make_visible(get_piece_text(pieces, group[0])), pieces.special[group[0]]
        total = float(sum(values[i] for i in group))
        span = join_spans(pieces, group)
        if span is None or pieces.text is None:
            before = " " if chips and not chips[-1].text.endswith(" ") else ""
            chips.append(Chip(name, total, special, before, tuple(group)))
            continue
        start, end = max(span[0], min(at, span[1])), span[1]
        before = make_gap_visible(pieces.text[at:start])
        if chips and not before and pieces.spans[chips[-1].positions[0]] is None:
            before = " "
        text = pieces.text[start:end]
        if text.strip():
            before += make_gap_visible(text[: len(text) - len(text.lstrip())])
            name = make_visible(text.strip()) + UNKNOWN_MARK * pieces.is_unknown(group[0])
            end -= len(text) - len(text.rstrip())
        # otherwise it covers only blanks, or characters already drawn: show its blanks as signs, or its name
        chips.append(Chip(name, total, special, before, tuple(group)))
        at = max(at, end)
    tail = make_gap_visible(pieces.text[at:]).rstrip() if pieces.text is not None else ""
    return chips, tail


def name_segments(pieces: Pieces, chips: Sequence[Chip]) -> list[Chip]:
    """The chips, with the name of the text at the first chip of each text of a pair; the line break before it goes."""
    if pieces.second is None:
        return list(chips)
    segments = pieces.segments
    named, last = [], None
    for chip in chips:
        segment = segments[chip.positions[0]]
        if segment is not None and segment != last:
            chip = replace(chip, before=chip.before.replace("\n", " ").strip(), opens=pieces.segment_names[segment])
        named.append(chip)
        last = segment
    return named


def group_by_letter(pieces: Pieces) -> Iterator[list[int]]:
    """Indices of the pieces of each chip; padding is left out."""
    borders = {0, *accumulate(map(len, split_letters(pieces.text or "")))}  # the offsets between letters
    group: list[int] = []
    for i in range(len(pieces)):
        if pieces.padding[i]:
            continue
        if group and not is_same_letter(pieces, group, i, borders):
            yield group
            group = []
        group = [*group, i]
    if group:
        yield group


def is_same_letter(pieces: Pieces, group: Sequence[int], i: int, borders: set[int]) -> bool:
    """Whether piece i shares a letter with the group before it."""
    before, here = join_spans(pieces, group), pieces.spans[i]
    if before is None or here is None or pieces.special[i] or pieces.special[group[0]] or here[0] == here[1]:
        return False
    return here[0] < before[1] or (here[0] == before[1] and here[0] not in borders)


def join_spans(pieces: Pieces, group: Sequence[int]) -> tuple[int, int] | None:
    """The smallest span that covers all pieces of the group; None if they cover no characters."""
    spans = [span for i in group if (span := pieces.spans[i]) is not None and span[0] < span[1]]
    return (min(s for s, _ in spans), max(e for _, e in spans)) if spans else None


def split_letters(text: str) -> Iterator[str]:
    """The text by what a reader sees as letters: Unicode grapheme clusters, with Indic conjuncts joined (rule GB9c)."""
    letter = ""
    for match in GRAPHEME.finditer(text):
        cluster = match.group()
        joins = letter and unicodedata.combining(letter.rstrip(JOINERS)[-1:] or " ") == VIRAMA
        if letter and not (joins and unicodedata.category(cluster[0]) == "Lo"):
            yield letter
            letter = ""
        letter += cluster
    if letter:
        yield letter


def make_gap_visible(text: str) -> str:
    """Spaces and line breaks unchanged, everything else made visible."""
    return "\n".join(make_visible(part.replace("\t", " ").removesuffix("\r")) for part in text.split("\n"))


def get_piece_text(pieces: Pieces, i: int) -> str:
    """The characters that piece i covers, blanks as signs, or its own name if it covers none."""
    span = pieces.spans[i]
    characters = pieces.text[span[0] : span[1]] if span is not None and pieces.text is not None else ""
    return (characters if characters.strip() else characters.translate(BLANK_SIGNS)) or pieces.pieces[i]


def name_piece(pieces: Pieces, i: int) -> str:
    """The same, and whether the model cannot read it."""
    return get_piece_text(pieces, i) + UNKNOWN_MARK * pieces.is_unknown(i)
