"""How often a summary was right: counts of benchmarks/shortcuts.py, on models whose marks are known.

The counts are from kinds of marks that had no part in the choice of any limit; those of marks that were drawn by
somebody else are kept apart.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict

FILE = Path(__file__).with_name("accuracy.json")


class Marks(TypedDict):
    """Models that use a kind of mark, and how many of these marks were found."""

    used: int
    found: int


class Blameless(TypedDict):
    """Models that use no mark, and how many had a suspicious finding."""

    models: int
    accused: int


class TrackRecord(TypedDict):
    local: dict[str, Marks]  # kinds of marks with a place, held out
    apart: dict[str, Marks]  # thin, transparent, or a change of the whole input
    clean: Blameless
    ignoring: Blameless
    outside: dict[str, Marks]  # marks that the makers of this search did not draw


@cache
def read_track_record() -> TrackRecord:
    record: TrackRecord = json.loads(FILE.read_text("utf-8"))
    return record


def write_track_record(record: TrackRecord | None = None) -> str:
    """One sentence with all counts: what was found, what was missed by kind, who was accused."""
    record = record or read_track_record()
    used, found = count_marks(record["local"])
    blameless = (record["clean"], record["ignoring"])
    models, accused = sum(one["models"] for one in blameless), sum(one["accused"] for one in blameless)
    outside, seen = count_marks(record["outside"])
    apart, faint = count_marks(record["apart"])
    return (
        f"How often this was right: of marks of kinds that were held out while the limits were chosen, on photographs "
        f"and sentences, {found} of {used} with a place ({list_kinds(record['local']) or 'none'}) and {faint} of "
        f"{apart} thin, faint or without one ({list_kinds(record['apart']) or 'none'}) that a small model used were "
        f"found, and {accused} of {models} models that use no mark were accused. Of marks drawn by others an earlier "
        f"version found {seen} of {outside} ({list_kinds(record['outside'])}). Expect no more of marks in your data."
    )


def count_marks(kinds: Mapping[str, Marks]) -> tuple[int, int]:
    """How many were used, and how many of these found."""
    return sum(one["used"] for one in kinds.values()), sum(one["found"] for one in kinds.values())


def list_kinds(kinds: Mapping[str, Marks]) -> str:
    return ", ".join(f"{kind} {one['found']}/{one['used']}" for kind, one in kinds.items())
