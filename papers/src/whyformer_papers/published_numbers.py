"""The published numbers: a JSON file for each document, with its tables and their rows by name.

A number is as it was printed. A mean with its standard deviation, and the share of examples that are significant if it
was printed, is a list; null is a number that the paper does not have.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias


class Source(StrEnum):
    """Where published numbers come from."""

    PAPER = "paper"
    RERUN = "third-party rerun"
    FILES = "authors' files"


class Spread(NamedTuple):
    """A mean over examples, its standard deviation, and the share of examples that are significant, if printed."""

    mean: float
    deviation: float
    share: float | None = None

    def __str__(self) -> str:
        share = "" if self.share is None else f" ({self.share:.2f})"
        digits = max(2, *(len(f"{number:g}".partition(".")[2]) for number in self[:2]))
        return f"{self.mean:.{digits}f}±{self.deviation:.{digits}f}{share}"


PublishedNumber: TypeAlias = float | Spread | None  # None: the paper has no number here


@cache
def read_tables(document: str) -> Mapping[str, Mapping[str, list[Any]]]:
    return json.loads((Path(__file__).parent / f"{document}_published.json").read_text("utf-8"))


def read_numbers(document: str, table: str) -> dict[str, tuple[float | None, ...]]:
    """The rows of a table without spreads, by name."""
    return {name: tuple(row) for name, row in read_tables(document)[table].items()}


def read_spreads(document: str, table: str) -> dict[str, tuple[PublishedNumber, ...]]:
    """The rows of a table, by name."""
    return {
        name: tuple(Spread(*cell) if isinstance(cell, list) else cell for cell in row)
        for name, row in read_tables(document)[table].items()
    }
