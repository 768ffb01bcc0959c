"""How often a summary was right: counts of benchmarks/shortcuts.py, on models whose marks are known.

The counts are from seeds and kinds of marks that had no part in the choice of any limit.
"""

import json
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
    local: dict[str, Marks]  # kinds of marks with a place
    apart: dict[str, Marks]  # transparent, or a change of the whole input
    clean: Blameless
    ignoring: Blameless


@cache
def read_track_record() -> TrackRecord:
    record: TrackRecord = json.loads(FILE.read_text("utf-8"))
    return record


def write_track_record(record: TrackRecord | None = None) -> str:
    """One sentence with all counts: what was found, what was missed by kind, who was accused."""
    record = record or read_track_record()
    local, used = record["local"], sum(one["used"] for one in record["local"].values())
    found = sum(one["found"] for one in local.values())
    blameless = (record["clean"], record["ignoring"])
    models, accused = sum(one["models"] for one in blameless), sum(one["accused"] for one in blameless)
    by_kind = ", ".join(f"{kind} {one['found']}/{one['used']}" for kind, one in (local | record["apart"]).items())
    return (
        f"How often this was right, on small models with planted marks: {found} of {used} marks that a model used were "
        f"found, and {accused} of {models} models that use no mark were accused. Found by kind: {by_kind}."
    )
