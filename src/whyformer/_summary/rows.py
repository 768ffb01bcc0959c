"""The rows of a bulk run: plan.json, and one Parquet part after another.

A part has one row per item and method. Only one part is in memory at a time. A file that is damaged by the checksum
inside it, belongs to another run, or whose rows contradict themselves, is an error that names it; a missing part is a
note.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from whyformer._model import name_source
from whyformer._runs.model_folder import read_model_folder
from whyformer._runs.plan import PLAN_FILE, RunPlan
from whyformer._runs.preparation import normalise_class_name
from whyformer._runs.seal import read_sealed_file
from whyformer.errors import InputError

KINDS = ("image", "text", "tensors")
PARTS_FOLDER = "parts"
PART_NAME = re.compile(r"part-(\d+)\.parquet")
REPAIR = "Run whyformer bulk again with the same arguments: it replaces damaged parts."
TEXT_COLUMNS = (
    "id method error message kind source label prediction_name target_name".split()
)  # fmt: skip
NUMBER_COLUMNS = "position prediction probability target rows columns".split()
LIST_COLUMNS = {"scores": np.float64, "special": np.bool_, "starts": np.int64, "ends": np.int64}
COLUMNS = [*TEXT_COLUMNS, *NUMBER_COLUMNS, *LIST_COLUMNS, "tokens"]  # all but map_png
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, NotImplementedError)  # what pyarrow raises on a damaged file


@dataclass(frozen=True, eq=False)
class StoredRow:
    """One item, explained by one method, or the error that prevented it."""

    id: str
    position: int
    method: str
    error: str | None
    message: str | None
    kind: str
    source: str | None
    label: str | None
    prediction: int | None
    prediction_name: str | None
    probability: float | None
    target: int | None
    target_name: str | None
    scores: np.ndarray | None  # [token]
    grid: tuple[int, int] | None = None  # rows and columns of the patches of an image
    tokens: tuple[str, ...] | None = None
    special: np.ndarray | None = None  # [token]
    spans: tuple[tuple[int, int] | None, ...] | None = None

    @property
    def class_name(self) -> str:
        """The explained class."""
        return self.target_name if self.target_name is not None else f"class {self.target}"

    @property
    def is_right(self) -> bool | None:
        """Whether the prediction is the label; None without a label."""
        if self.label is None or self.prediction is None:
            return None
        names = {str(self.prediction), normalise_class_name(self.prediction_name or "")}
        return normalise_class_name(self.label) in names


@dataclass(frozen=True)
class StoredRun:
    """The folder of a bulk run."""

    folder: Path
    plan: Mapping[str, Any] = field(repr=False)
    parts: tuple[Path, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def model_name(self) -> str | None:
        """The model as it was named; runs of earlier versions have its path."""
        name = find_name(self.plan.get("model"))
        return None if name is None else name_source(name)

    @property
    def model_source(self) -> str | Path | None:
        """What opens the model again: its folder seen from here, or its name."""
        return read_model_folder(self.folder) or find_name(self.plan.get("model"))

    @property
    def data_name(self) -> str | None:
        return find_name(self.plan.get("data"))

    def iterate_parts(self) -> Iterator[list[StoredRow]]:
        """The rows of each part, with a row that occurs twice (the same item and method) only once."""
        seen = SeenRows()
        for part in self.parts:
            yield [row for row in self.iterate_rows(part) if seen.add(row.method, row.position)]

    def iterate_rows(self, part: Path) -> Iterator[StoredRow]:
        """The rows of one part, after its checksum was compared."""
        contents, facts = read_sealed_file(part, REPAIR)
        if (facts.get("fingerprint"), facts.get("shard")) != (self.plan["fingerprint"], number_of_part(part)):
            raise InputError(f"{part} belongs to another run, or to another place in it. {REPAIR}", code="E_DATA")
        return iterate_stored_rows(part, contents)


class SeenRows:
    """Which rows were read already: one bit per item and method."""

    PAGE = 2**16

    def __init__(self) -> None:
        self.pages: dict[tuple[str, int], np.ndarray] = {}

    def add(self, method: str, position: int) -> bool:
        """Whether the row is new."""
        page, place = divmod(position, self.PAGE)
        bits = self.pages.setdefault((method, page), np.zeros(self.PAGE // 8, np.uint8))
        byte, bit = divmod(place, 8)
        is_new = not bits[byte] >> bit & 1
        bits[byte] |= 1 << bit
        return is_new


def open_stored_run(folder: Path) -> StoredRun:
    """The plan and the parts of a finished or unfinished run."""
    plan = read_run_plan(folder / PLAN_FILE)
    numbered = {}
    for path in sorted((folder / PARTS_FOLDER).glob("*.parquet")) if (folder / PARTS_FOLDER).is_dir() else []:
        if (number := number_of_part(path)) is not None and path.is_file():
            numbered[number] = path
    if not numbered:
        raise InputError(
            f"{folder} has no finished part: no {PARTS_FOLDER}/part-*.parquet. Run whyformer bulk first.", code="E_DATA"
        )
    missing = sorted(set(range(max(numbered) + 1)) - set(numbered))
    notes = (f"{describe_parts(missing)} missing; the summary covers the others.",) if missing else ()
    return StoredRun(folder, plan, tuple(numbered[number] for number in sorted(numbered)), notes)


def number_of_part(path: Path) -> int | None:
    match = PART_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def describe_parts(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"Part {named} is" if len(numbers) == 1 else f"Parts {named} are"


def read_run_plan(path: Path) -> dict[str, Any]:
    """The fields of plan.json."""
    try:
        if not path.is_file():  # missing, or a pipe that would block for ever
            raise InputError(f"{path.parent} is not the folder of a bulk run: it has no {path.name}.", code="E_DATA")
        plan = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.", code="E_DATA") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: it is not JSON.", code="E_DATA") from None
    if not isinstance(plan, dict):
        raise InputError(f"{path} is damaged: it does not hold the fields of a plan.", code="E_DATA")
    fields = {name: value for name, value in plan.items() if name != "fingerprint"}
    if plan.get("fingerprint") != RunPlan(fields).fingerprint:
        raise InputError(
            f"{path} is damaged: its fields do not match their fingerprint. Restore it, or run whyformer bulk again "
            "into another folder.",
            code="E_DATA",
        )
    return plan


def find_name(field: Any) -> str | None:
    """The name in a field of the plan, which is a text or has a name."""
    name = field.get("name") if isinstance(field, Mapping) else field
    return name if isinstance(name, str) else None


# --- one part ---------------------------------------------------------------------------------------------------------


def iterate_stored_rows(path: Path, contents: bytes) -> Iterator[StoredRow]:
    """The rows of one part. path: as errors name it."""
    try:
        file = pq.ParquetFile(pa.BufferReader(contents))
        missing = sorted(set(COLUMNS) - set(file.schema_arrow.names))
        table = file.read(columns=[name for name in COLUMNS if name not in missing]) if not missing else None
    except READ_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read: {reason}. {REPAIR}", code="E_DATA") from None
    if table is None:
        raise InputError(f"{path} has no column {', '.join(missing)}: it is no part of a bulk run.", code="E_DATA")
    try:
        columns = {name: table.column(name).to_pylist() for name in (*TEXT_COLUMNS, *NUMBER_COLUMNS, "tokens")}
        lists = {name: split_list_column(table.column(name), kind) for name, kind in LIST_COLUMNS.items()}
    except READ_ERRORS as error:
        raise InputError(f"{path} is damaged: {' '.join(str(error).split())[:200]}. {REPAIR}", code="E_DATA") from None
    for i in range(table.num_rows):
        cells = {name: column[i] for name, column in columns.items()}
        row = make_stored_row(cells, {name: column[i] for name, column in lists.items()})
        if problem := find_contradiction(row):
            raise InputError(f"{path}, row {i} ({row.id!r:.100}): {problem}. {REPAIR}", code="E_DATA")
        yield row


def split_list_column(column: pa.ChunkedArray, kind: type) -> list[np.ndarray | None]:
    """A numpy array per row, without a Python object per number."""
    rows: list[np.ndarray | None] = []
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        ends = np.cumsum(np.nan_to_num(chunk.value_lengths().to_numpy(zero_copy_only=False).astype(float)))
        starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        present = chunk.is_valid().to_numpy(zero_copy_only=False)
        for start, end, is_there in zip(starts.astype(int), ends.astype(int), present, strict=True):
            rows.append(values[start:end].astype(kind) if is_there else None)
    return rows


def make_stored_row(cells: Mapping[str, Any], lists: Mapping[str, np.ndarray | None]) -> StoredRow:
    names = (
        "id position method error message kind source label prediction prediction_name probability target target_name"
    )
    tokens, starts, ends = cells["tokens"], lists["starts"], lists["ends"]
    spans = None
    if starts is not None and ends is not None:
        spans = tuple((int(a), int(b)) if 0 <= a < b else None for a, b in zip(starts, ends, strict=False))
    has_grid = cells["rows"] is not None and cells["columns"] is not None
    return StoredRow(
        **{name: cells[name] for name in (*names.split(), "target_name")},
        scores=lists["scores"],
        grid=(cells["rows"], cells["columns"]) if has_grid else None,
        tokens=tuple("" if token is None else token for token in tokens) if tokens is not None else None,
        special=lists["special"],
        spans=spans,
    )


def find_contradiction(row: StoredRow) -> str | None:
    """What is wrong with a row; None if it can be used."""
    if row.id is None or row.method is None or row.position is None or row.position < 0:
        return "it has no id, method or position"
    if row.error is not None:
        return None
    if row.kind not in KINDS or row.scores is None:
        return "it has neither an error nor an explanation"
    count = len(row.scores)
    if not np.isfinite(row.scores).all():
        return "a score is not finite"
    if row.kind == "image" and row.grid is not None and row.grid[0] * row.grid[1] != count:
        return f"{count} scores for {row.grid[0]} x {row.grid[1]} patches"
    if row.kind == "text":
        lengths = {len(part) for part in (row.tokens, row.special, row.spans) if part is not None}
        if row.tokens is None or lengths != {count}:
            return f"{count} scores, but lists of {sorted(lengths)} tokens"
    return None
