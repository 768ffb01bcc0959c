"""Chips: a text as it is drawn, piece by piece, each with its score. No letter is ever cut in two.

Pieces of the same characters (the bytes of one emoji), and pieces whose border lies inside what a person sees as one
letter (a vowel sign, an accent, a flag, a family), are drawn as one chip with the sum of their scores.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import regex
import torch
from torch import Tensor

from whyformer._plain.tokens import Pieces
from whyformer.show.colours import find_limits
from whyformer.show.visible import JOINERS, make_visible

GRAPHEME = regex.compile(r"\X")
VIRAMA = 9  # the combining class of the sign that joins two Indic consonants into one letter


@dataclass(frozen=True)
class Chip:
    """What is drawn as one. `before` is what stands between it and the chip before; both are safe to print."""

    text: str
    score: float
    special: bool
    before: str
    places: tuple[int, ...]  # of its pieces


def make_chips(pieces: Pieces, scores: Tensor) -> tuple[list[Chip], str]:
    """The chips of a text without its padding, and what stands after the last of them."""
    made: list[Chip] = []
    at = 0  # how far into the text we are
    values = scores.tolist()
    for group in group_by_letter(pieces):
        first, total = group[0], float(sum(values[i] for i in group))
        span = span_of_pieces(pieces, group)
        if span is None or pieces.text is None:
            gap = " " if made and not made[-1].text.endswith(" ") else ""
            made.append(Chip(make_visible(pieces.pieces[first]), total, pieces.special[first], gap, tuple(group)))
            continue
        start, end = max(span[0], min(at, span[1])), span[1]
        before = make_gap_visible(pieces.text[at:start])
        if made and not before and pieces.spans[made[-1].places[0]] is None:
            before = " "
        letters = pieces.text[start:end]
        inner = letters.strip()
        if inner:
            lead = letters[: len(letters) - len(letters.lstrip())]
            chip = Chip(
                make_visible(inner), total, pieces.special[first], before + make_gap_visible(lead), tuple(group)
            )
            end -= len(letters) - len(letters.rstrip())
        else:  # it covers only a blank, or what was drawn already: its own name
            chip = Chip(make_visible(pieces.pieces[first]), total, pieces.special[first], before, tuple(group))
        made.append(chip)
        at = max(at, end)
    tail = make_gap_visible(pieces.text[at:]).rstrip() if pieces.text is not None else ""
    return made, tail


def group_by_letter(pieces: Pieces) -> Iterator[list[int]]:
    """The pieces that are drawn as one."""
    borders = find_letter_borders(pieces.text)
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
    """Piece i shares a letter with the group before it."""
    before, here = span_of_pieces(pieces, group), pieces.spans[i]
    if before is None or here is None or pieces.special[i] or pieces.special[group[0]] or here[0] == here[1]:
        return False
    return here[0] < before[1] or (here[0] == before[1] and here[0] not in borders)


def span_of_pieces(pieces: Pieces, group: Sequence[int]) -> tuple[int, int] | None:
    spans = [span for i in group if (span := pieces.spans[i]) is not None and span[0] < span[1]]
    return (min(s for s, _ in spans), max(e for _, e in spans)) if spans else None


def split_letters(text: str) -> Iterator[str]:
    """What a person sees as one letter each: clusters of Unicode, Indic conjuncts joined (its rule GB9c)."""
    held = ""
    for match in GRAPHEME.finditer(text):
        cluster = match.group()
        joins = held and unicodedata.combining(held.rstrip(JOINERS)[-1:] or " ") == VIRAMA
        if held and not (joins and unicodedata.category(cluster[0]) == "Lo"):
            yield held
            held = ""
        held += cluster
    if held:
        yield held


def find_letter_borders(text: str | None) -> set[int]:
    """Where one letter ends and the next begins."""
    return set() if text is None else {0, *accumulate(len(letter) for letter in split_letters(text))}


def make_gap_visible(text: str) -> str:
    """Spaces and line ends as they are, the rest made visible."""
    return "\n".join(make_visible(part.replace("\t", " ").removesuffix("\r")) for part in text.split("\n"))


def find_chip_limits(made: Sequence[Chip], *, signed: bool) -> tuple[float, float]:
    """The limits of the words: a special token, which often gets most, does not make all others pale."""
    ordinary = [chip.score for chip in made if not chip.special] or [chip.score for chip in made]
    return find_limits(torch.tensor(ordinary, dtype=torch.double), signed=signed, floor=0.0)
