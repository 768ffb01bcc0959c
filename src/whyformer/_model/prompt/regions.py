"""Regions: named parts of a prompt, as ranges of its tokens.

A token belongs to the part that contains its last character, so the blank before a word goes with the word, and the
line break after a sentence with the sentence. Where a part ends inside a token, every token that it touches counts.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from whyformer._plain.json_value import JsonObject
from whyformer._plain.tokens import NamedTokens
from whyformer._plain.words import find_paragraph_starts, find_sentence_starts
from whyformer.errors import InputError

Characters: TypeAlias = tuple[int, int]  # from the first, up to and without the last
SplitBy: TypeAlias = (
    str | Sequence[str] | Sequence[Characters] | Sequence["Region"] | Callable[[str], Iterable[Characters]]
)


@dataclass(frozen=True)
class Region(NamedTokens):
    """A named part of a prompt.

    kind: system, user, assistant, tool, tool call, tool definition, thinking, document, passage, sentence, answer or
    other. The text that a chat template adds between the messages is "other".
    """

    text: str
    characters: Characters | None = None  # where it is in the text of the prompt
    id: str | None = None  # of the document that it is, or is part of
    metadata: JsonObject = field(default_factory=dict, hash=False)  # of that document

    def __len__(self) -> int:
        return self.stop - self.start


def check_regions(regions: Sequence[object], length: int) -> tuple[Region, ...]:
    """Regions that the caller made: in order, not overlapping, and among the first tokens of the prompt."""
    known = [one for one in regions if isinstance(one, Region)]
    if len(known) < len(regions):
        raise InputError("by must have regions only, or none.", code="E_OPTION")
    ordered = sorted(known, key=lambda region: region.start)
    for before, one in zip([None, *ordered], ordered, strict=False):
        if not 0 <= one.start < one.stop <= length:
            raise InputError(
                f"{one.name} has the tokens {one.start} to {one.stop}, but {length} tokens are before the answer."
            )
        if before is not None and one.start < before.stop:
            raise InputError(
                f"{one.name} begins at token {one.start}, inside the region before it, which ends at {before.stop}."
            )
    return tuple(ordered)


@dataclass(frozen=True)
class NamedPart:
    """A part of a text that has a name, before its tokens are known."""

    name: str
    kind: str
    characters: Characters


def assign_tokens(text: str, offsets: Sequence[Characters], parts: Sequence[NamedPart]) -> list[Region]:
    """Each part as a region; parts are in the order of the text and do not overlap."""
    begins = [part.characters[0] for part in parts]
    found: list[list[int]] = [[] for _ in parts]
    touched: list[list[int]] = [[] for _ in parts]
    for token, (start, end) in enumerate(offsets):
        if start == end:
            continue
        for place in range(max(bisect_right(begins, start) - 1, 0), bisect_right(begins, end - 1)):
            first, last = parts[place].characters
            if first < end and start < last:
                touched[place].append(token)
            if first < end <= last:
                found[place].append(token)
    return [
        Region(part.name, part.kind, tokens[0], tokens[-1] + 1, text[slice(*part.characters)], part.characters)
        for part, own, other in zip(parts, found, touched, strict=True)
        if (tokens := own or other)
    ]


# --- where parts are --------------------------------------------------------------------------------------------------


def split_at(find_starts: Callable[[str], Sequence[int]], text: str, within: Characters) -> list[Characters]:
    """The characters from each start up to the next one."""
    begin, end = within
    starts = find_starts(text[begin:end])
    return [(begin + a, begin + b) for a, b in zip(starts, [*starts[1:], end - begin], strict=True)]


def find_passage_starts(text: str) -> list[int]:
    """Where paragraphs start, or lines if no blank line separates any."""
    if len(paragraphs := find_paragraph_starts(text)) > 1:
        return paragraphs
    starts: list[int] = []
    at = 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            starts.append(at if starts else 0)
        at += len(line)
    return starts or [0]


STARTS = {"sentence": find_sentence_starts, "paragraph": find_paragraph_starts, "passage": find_passage_starts}
SPLITTERS = {name: partial(split_at, find_starts) for name, find_starts in STARTS.items()}


def find_texts(text: str, wanted: Sequence[str]) -> list[Characters]:
    """Where each of these texts is: after the one before it if it is there, else at its first place."""
    places, at = [], 0
    for one in wanted:
        start = text.find(one, at) if one else -1
        start = text.find(one) if start < 0 and one else start
        if start < 0:
            shown = one if len(one) <= 60 else f"{one[:60]}..."
            raise InputError(f"{shown!r} does not occur in the prompt. Pass parts of it as they are written there.")
        places.append((start, start + len(one)))
        at = start + len(one)
    return places


def check_characters(places: Iterable[Any], length: int) -> list[Characters]:
    """Ranges of characters that are inside the text and do not overlap, in the order of the text."""
    given = list(places)
    for place in given:
        if not is_range_of_numbers(place) or not 0 <= place[0] < place[1] <= length:
            wanted = f"(start, stop) in characters with 0 <= start < stop <= {length}"
            raise InputError(f"{place!r} is no part of the prompt. A part is {wanted}.")
    checked: list[Characters] = sorted((place[0], place[1]) for place in given)
    for before, after in pairwise(checked):
        if after[0] < before[1]:
            raise InputError(f"The parts {before} and {after} of the prompt overlap. Pass parts that do not.")
    if not checked:
        raise InputError("The prompt is split into no parts. Pass at least one.")
    return checked


def is_range_of_numbers(place: Any) -> bool:
    return isinstance(place, tuple | list) and len(place) == 2 and all(type(one) is int for one in place)


def skip_blanks(text: str, at: int) -> int:
    """Where the white space that begins here ends."""
    return next((n for n in range(at, len(text)) if not text[n].isspace()), len(text))


def trim_blanks(text: str, place: Characters) -> Characters:
    """The same characters without white space at both ends; all of them if there is nothing else."""
    covered = text[slice(*place)]
    if not covered.strip():
        return place
    start = place[0] + len(covered) - len(covered.lstrip())
    return start, start + len(covered.strip())
