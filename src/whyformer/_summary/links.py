"""Where a finding is concentrated: a folder, or a value of a column of metadata.

Within the class of the finding, so that a folder for each class is no link: do the items with a value show it more
often than the others? Fisher's exact test, one-sided (Fisher 1922), corrected by Holm over all findings, columns and
values.
"""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from scipy.stats import hypergeom

from whyformer._plain.statistics import adjust_p_values
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import LEVEL, Finding, Link
from whyformer.errors import InputError

MIN_VALUE_ITEMS = 5  # of the class, with a value and without
MOST_VALUES = 50  # of a column; with more, it names the items
CONCENTRATED = 2.0  # times as frequent as elsewhere
MOST_LINKS = 3  # of a finding
MetadataLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Mapping[str, object]]
Columns: TypeAlias = Mapping[str, Mapping[str, str]]  # column -> id -> value


def read_item_metadata(metadata: MetadataLike | None) -> dict[str, dict[str, str]]:
    """The columns of a CSV file with a column id, or of a mapping from ids to values by column."""
    if metadata is None:
        return {}
    if isinstance(metadata, Mapping):
        rows = [(str(name), values) for name, values in metadata.items()]
    else:
        try:
            with Path(metadata).open(encoding="utf-8-sig", newline="") as file:
                table = list(csv.DictReader(file, restkey=""))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"metadata: {os.fspath(metadata)!r} could not be read: {error}", code="E_DATA") from None
        if not table or "id" not in table[0]:
            raise InputError(
                f"metadata: {os.fspath(metadata)!r} has no column id, by which its rows belong to items.", code="E_DATA"
            )
        rows = [
            (str(row["id"]), {name: value for name, value in row.items() if name not in ("id", "")}) for row in table
        ]
    columns: dict[str, dict[str, str]] = {}
    for name, values in rows:
        for column, value in values.items():
            if value not in (None, ""):
                columns.setdefault(str(column), {})[name] = str(value)
    return columns


def list_folders(rows: Sequence[BulkRow]) -> dict[str, str]:
    """The folder of each image, by id."""
    parents = {row.id: Path(row.id).parent for row in rows if row.kind == "image"}
    here = {row.id: Path(row.source).parent for row in rows if row.kind == "image" and row.source is not None}
    return {
        name: str(parent if parent != Path(".") else here.get(name, parent).name) for name, parent in parents.items()
    }


def add_links(
    findings: Sequence[Finding], classes: Mapping[str, Sequence[BulkRow]], metadata: Columns
) -> list[Finding]:
    """The findings with the values that they are concentrated in, the smallest p first."""
    columns = {"folder": list_folders([row for rows in classes.values() for row in rows]), **metadata}
    found = [
        (i, link)
        for i, one in enumerate(findings)
        for link in find_links(one, classes.get(one.class_name, ()), columns)
    ]
    adjusted = adjust_p_values([link.p for _, link in found])
    links: dict[int, list[Link]] = {}
    for (i, link), p in zip(found, adjusted, strict=True):
        if p < LEVEL and link.inside >= CONCENTRATED * link.outside:
            links.setdefault(i, []).append(replace(link, p=p))
    ranked = {i: sorted(some, key=lambda one: (one.p, one.column, one.value)) for i, some in links.items()}
    return [replace(one, links=tuple(ranked.get(i, ())[:MOST_LINKS])) for i, one in enumerate(findings)]


def find_links(finding: Finding, rows: Sequence[BulkRow], columns: Columns) -> Iterator[Link]:
    """Every value that enough items of the class have, with its test."""
    shown = {row.id for row in finding.rows}
    for column, values in columns.items():
        known = [row.id for row in rows if row.id in values]
        distinct = sorted({values[name] for name in known})
        for value in distinct if 1 < len(distinct) <= MOST_VALUES else ():
            inside = [name in shown for name in known if values[name] == value]
            outside = [name in shown for name in known if values[name] != value]
            if min(len(inside), len(outside)) >= MIN_VALUE_ITEMS:
                here, there = sum(inside), sum(outside)
                p = float(hypergeom.sf(here - 1, len(known), here + there, len(inside)))
                yield Link(column, value, here / len(inside), there / len(outside), p)
