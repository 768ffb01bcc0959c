"""The input list of a bulk run: every item has an id and a position, also one that cannot be read.

A row of a table that cannot be used is an item too: it ends as an error record. Ids are checked before any work, and
items are made on demand, so that a million of them fit into memory.

What an item is made of is told by a hash of its content. A file is hashed when it is read for its row; later calls only
look at its size and time of change, and hash it again if these differ. Its path does not count.
"""

import hashlib
import os
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from whyformer._model import InputKind
from whyformer.data import Data, LazyContent
from whyformer.data.example import fingerprint_content, fingerprint_file
from whyformer.errors import InputError
from whyformer.show.score_rows import as_utf8

SHOWN_IDS = 5  # how many repeated ids an error names
MARK_LENGTH = 32  # hexadecimal digits: 128 bits


@dataclass(frozen=True, slots=True)
class Item:
    """One input of the list."""

    id: str
    position: int  # in the input list; of a run that has grown, in the order in which items were added
    content: Any = None  # a path, image, text, tensor or LazyContent
    label: int | str | None = None
    problem: str | None = None  # why the row cannot be used
    methods: tuple[str, ...] = ()  # the labels of those that it is explained by; none: all
    mark: str | None = None  # a hash of the content, once it was loaded


class ItemList:
    """All items in the order of the input, or a random sample of them in that order; see also `arrange`."""

    def __init__(self, data: Data, limit: int | None = None) -> None:
        self.data = data
        self._lost = [problem for problem in data.problems if problem.is_lost and problem.position >= 0]
        self._lost_at = [problem.position for problem in self._lost]
        total = len(data) + len(self._lost)
        self._positions: Sequence[int] = range(total)
        self.is_arranged = False
        if limit is not None and limit < total:
            self._positions = sorted(Random(0).sample(range(total), limit))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Item:
        item = self._make_item(self._positions[index])
        return replace(item, position=index) if self.is_arranged else item

    def __iter__(self) -> Iterator[Item]:
        return map(self.__getitem__, range(len(self)))

    def arrange(self, placed: Mapping[int, int]) -> None:
        """Move items to new indices, {new: old}; the others fill the rest in the order of the input."""
        if all(new == old for new, old in placed.items()):
            return
        taken = set(placed.values())
        others = iter([old for old in range(len(self)) if old not in taken])
        order = [placed[new] if new in placed else next(others) for new in range(len(self))]
        self._positions, self.is_arranged = [self._positions[old] for old in order], True

    def _make_item(self, position: int) -> Item:
        before = bisect_left(self._lost_at, position)
        if before < len(self._lost) and self._lost_at[before] == position:
            return Item(as_utf8(self._lost[before].place), position, problem=self._lost[before].reason)
        example = self.data.examples[position - before]
        return Item(as_utf8(example.name), position, example.content, example.label)

    def check_ids(self) -> None:
        """Refuse empty ids and ids that occur twice; ids that differ only in Unicode normal form count as equal."""
        seen: set[str] = set()
        repeated: dict[str, None] = {}
        for item in self:
            key = item.id if item.id.isascii() else unicodedata.normalize("NFC", item.id)
            if not key.strip():
                raise InputError(
                    f"The item at position {item.position} has an empty id. Give it a name, or drop the column of ids.",
                    code="E_DATA",
                )
            if key in seen:
                repeated[key] = None
            seen.add(key)
        if repeated:
            listed = ", ".join(f"{key[:100]!r}" for key in list(repeated)[:SHOWN_IDS])
            more = f" and {len(repeated) - SHOWN_IDS} more" if len(repeated) > SHOWN_IDS else ""
            raise InputError(
                f"Ids must be unique, but these occur more than once: {listed}{more}. Rename them, or choose another "
                'column for ids with columns={"name": ...}.',
                code="E_DATA",
            )

    def fingerprint(self, kind: InputKind) -> str:
        """A hash of every id, label and content, in order; of files only the ids, their rows have the rest."""
        digest = hashlib.sha256()
        for item in self:
            is_file = stamp_content(item.content, kind) is not None
            marks = (item.id, repr(item.label), item.problem or "", "" if is_file else mark_content(item.content, kind))
            digest.update("".join(f"{len(mark)}:{mark};" for mark in marks).encode(errors="surrogatepass"))
        return digest.hexdigest()


def stamp_content(content: Any, kind: InputKind) -> str | None:
    """A cheap sign that a file, or what is loaded from one, has not changed; None for what is in memory."""
    match content:
        case LazyContent():
            return content.mark
        case str() if kind == "text":
            return None
        case str() | os.PathLike():
            try:
                status = os.stat(content)
            except (OSError, ValueError):
                return "unreadable"
            return f"{status.st_size}:{status.st_mtime_ns}"
    return None


def mark_content(content: Any, kind: InputKind) -> str:
    """A hash of the content: of the bytes of a file, wherever it is; of what was loaded."""
    match content:
        case LazyContent():
            return mark_content(content.load(), kind)
        case str() if kind == "text":
            text = content
        case str() | os.PathLike():
            text = fingerprint_file(Path(os.fsdecode(content)))
        case _:
            text = fingerprint_content(content)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:MARK_LENGTH]
