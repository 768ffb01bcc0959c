"""The input list of a bulk run: every item has an id and a position, also one that cannot be read.

A row of a table that cannot be used is an item too: it ends as an error record. Ids are checked before any work, and
items are made on demand, so that a million of them fit into memory.
"""

import hashlib
import os
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from whyformer._model import InputKind
from whyformer.data import Data, LazyContent
from whyformer.data.example import fingerprint_content
from whyformer.errors import InputError
from whyformer.show.score_rows import as_utf8

SHOWN_IDS = 5  # how many repeated ids an error names


@dataclass(frozen=True, slots=True)
class Item:
    """One input of the list."""

    id: str
    position: int  # in the input list
    content: Any = None  # a path, image, text, tensor or LazyContent
    label: int | str | None = None
    problem: str | None = None  # why the row cannot be used


class ItemList:
    """All items in the order of the input, or a random sample of them in that order."""

    def __init__(self, data: Data, limit: int | None = None, seed: int = 0) -> None:
        self.data = data
        self._lost = [problem for problem in data.problems if problem.is_lost and problem.position >= 0]
        self._lost_at = [problem.position for problem in self._lost]
        total = len(data) + len(self._lost)
        self._positions: Sequence[int] = range(total)
        if limit is not None and limit < total:
            self._positions = sorted(Random(seed).sample(range(total), limit))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Item:
        return self._make_item(self._positions[index])

    def __iter__(self) -> Iterator[Item]:
        return map(self._make_item, self._positions)

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
        """A hash of every id, label and content, in order. Of an image file only size and time of change are used."""
        digest = hashlib.sha256()
        for item in self:
            marks = (item.id, repr(item.label), item.problem or "", identify_content(item.content, kind))
            digest.update("".join(f"{len(mark)}:{mark};" for mark in marks).encode(errors="surrogatepass"))
        return digest.hexdigest()


def identify_content(content: Any, kind: InputKind) -> str:
    """A text that identifies the content without reading a whole file."""
    match content:
        case LazyContent():
            return content.mark
        case str() if kind == "text":
            return content
        case str() | os.PathLike():
            try:
                status = os.stat(content)
            except (OSError, ValueError):
                return "unreadable"
            return f"{status.st_size}:{status.st_mtime_ns}"
    return fingerprint_content(content)
