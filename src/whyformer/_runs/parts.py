"""The parts of a bulk run: Parquet files with one row for each item and method, errors included.

    pandas.read_parquet("runs/photos/parts")                       all rows
    polars.read_parquet("runs/photos/parts/*.parquet")
    datasets.load_dataset("parquet", data_files="runs/photos/parts/*.parquet")

The same rows are the same bytes, whoever computed them. See seal.py for the checksum in each part.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from whyformer._runs.plan import RunPlan
from whyformer._runs.preparation import normalise_class_name
from whyformer._runs.seal import HEADER_KEY, make_unsealed_header, read_seal, read_sealed_file, seal_file
from whyformer._runs.store import DECODE_ERRORS, ShardFacts, ShardFolder
from whyformer.errors import InputError
from whyformer.show.score_rows import as_utf8

if TYPE_CHECKING:
    import pyarrow as pa

PARTS_FOLDER = "parts"
KINDS = ("image", "text", "tensors")
REPAIR = "Run whyformer bulk again with the same arguments: it replaces damaged parts."
# The columns of a part in order, with their types as pyarrow names them; in brackets: a list of these.
COLUMN_TYPES = {
    "id": "string", "position": "int64", "method": "string", "error": "string", "message": "string", "kind": "string",
    "source": "string", "label": "string", "prediction": "int32", "prediction_name": "string", "probability": "float",
    "target": "int32", "target_name": "string", "scores": "[float]", "rows": "int32", "columns": "int32",
    "tokens": "[string]", "special": "[bool]", "starts": "[int32]", "ends": "[int32]", "map_png": "binary",
}  # fmt: skip
ARRAY_COLUMNS = {"scores": np.float64, "special": np.bool_, "starts": np.int64, "ends": np.int64}  # as they are read


class PartRow(Protocol):
    """What a row of any run has: where its item is in the input, and why it failed."""

    @property
    def position(self) -> int: ...

    @property
    def error(self) -> str | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class BulkRow:
    """The explanation of one item by one method, or the error that took its place."""

    id: str
    position: int  # in the input list
    method: str  # as it was asked for, settings included
    kind: str  # image, text or tensors
    error: str | None = None  # a code
    message: str | None = None
    source: str | None = None  # the text, or the path of the image
    label: str | None = None  # the true class, if the data has one
    prediction: int | None = None
    prediction_name: str | None = None
    probability: float | None = None  # of the prediction
    target: int | None = None  # the class that is explained
    target_name: str | None = None
    scores: np.ndarray | None = None  # of patches, row by row; or of tokens, special ones included
    rows: int | None = None  # of the grid of patches
    columns: int | None = None
    tokens: tuple[str, ...] | None = None
    special: Sequence[bool] | np.ndarray | None = None
    starts: Sequence[int] | np.ndarray | None = None  # characters of `source`; -1 where a token has none
    ends: Sequence[int] | np.ndarray | None = None
    map_png: bytes | None = None

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches of an image."""
        return None if self.rows is None or self.columns is None else (self.rows, self.columns)

    @property
    def spans(self) -> tuple[tuple[int, int] | None, ...] | None:
        """Where each token is in `source`."""
        if self.starts is None or self.ends is None:
            return None
        return tuple((int(a), int(b)) if 0 <= a < b else None for a, b in zip(self.starts, self.ends, strict=False))

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

    def find_contradiction(self) -> str | None:
        """What is wrong with a row that was read; None if it can be used."""
        if self.id is None or self.method is None or self.position is None or self.position < 0:
            return "it has no id, method or position"
        if self.error is not None:
            return None
        if self.kind not in KINDS or self.scores is None:
            return "it has neither an error nor an explanation"
        count = len(self.scores)
        if not np.isfinite(self.scores).all():
            return "a score is not finite"
        if self.kind == "image" and self.grid is not None and self.grid[0] * self.grid[1] != count:
            return f"{count} scores for {self.grid[0]} x {self.grid[1]} patches"
        if self.kind == "text":
            lengths = {len(part) for part in (self.tokens, self.special, self.spans) if part is not None}
            if self.tokens is None or lengths != {count}:
                return f"{count} scores, but lists of {sorted(lengths)} tokens"
        return None


class PartStore(ShardFolder):
    """The parts of a plan: part-00000.parquet, part-00001.parquet, ..."""

    prefix, digits = "part-", 5

    def __init__(self, folder: Path, plan: RunPlan) -> None:
        super().__init__(folder / PARTS_FOLDER, plan, ".parquet")

    def read_facts(self, number: int) -> ShardFacts | None:
        path = self.path(number)
        try:
            facts = read_seal(path.read_bytes()) if path.is_file() else None  # reading a pipe would block for ever
        except OSError:
            return None
        return facts if facts is not None and is_part_of(facts, self.fingerprint, number) else None


def is_part_of(facts: ShardFacts, fingerprint: str, number: int | None) -> bool:
    return (facts.get("fingerprint"), facts.get("shard")) == (fingerprint, number)


def make_schema(columns: Mapping[str, str] = COLUMN_TYPES) -> "pa.Schema":
    """The columns of a part, by the types that pyarrow gives them names for."""
    import pyarrow as pa

    types = {name: pa.type_for_alias(kind.strip("[]")) for name, kind in columns.items()}
    return pa.schema((name, pa.list_(types[name]) if kind[0] == "[" else types[name]) for name, kind in columns.items())


def encode_part(
    rows: Sequence[PartRow], number: int, fingerprint: str, columns: Mapping[str, str] = COLUMN_TYPES
) -> bytes:
    """The file of a shard: its rows, and a header with the fingerprint of the plan and the number of failed items."""
    import pyarrow as pa
    from pyarrow import parquet

    failed = len({row.position for row in rows if row.error is not None})
    header = make_unsealed_header({"fingerprint": fingerprint, "shard": number, "rows": len(rows), "failed": failed})
    cells = {name: [make_cell_storable(getattr(row, name)) for row in rows] for name in columns}
    sink, schema = BytesIO(), make_schema(columns)
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        writer.write_table(pa.table(cells, schema=schema))
        writer.add_key_value_metadata({HEADER_KEY: header})  # in the file only: the schema is stored twice
    return seal_file(sink.getvalue())


def make_cell_storable(value: Any) -> Any:
    """Escape what UTF-8 cannot encode, also inside lists of tokens."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return [as_utf8(text) for text in value]
    return as_utf8(value)


def read_part(path: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    """The rows of a part as a pyarrow table, after its checksum was compared."""
    from pyarrow import BufferReader, parquet

    contents, _ = read_sealed_file(path, REPAIR)
    return parquet.ParquetFile(BufferReader(contents)).read(columns=columns)


def iterate_part_rows(path: Path, fingerprint: str, number: int | None) -> Iterator[BulkRow]:
    """The rows of one part without their maps, after its checksum was compared."""
    from pyarrow import BufferReader, parquet

    contents, facts = read_sealed_file(path, REPAIR)
    if not is_part_of(facts, fingerprint, number):
        raise InputError(f"{path} belongs to another run, or to another place in it. {REPAIR}", code="E_DATA")
    names = [name for name in COLUMN_TYPES if name != "map_png"]
    try:
        file = parquet.ParquetFile(BufferReader(contents))
        if missing := sorted(set(names) - set(file.schema_arrow.names)):
            raise InputError(f"{path} has no column {', '.join(missing)}: it is no part of a bulk run.", code="E_DATA")
        table = file.read(columns=names)
        columns = {name: read_part_column(table.column(name), ARRAY_COLUMNS.get(name)) for name in names}
    except DECODE_ERRORS as error:
        raise InputError(f"{path} is damaged: {' '.join(str(error).split())[:200]}. {REPAIR}", code="E_DATA") from None
    for i, cells in enumerate(zip(*columns.values(), strict=True)):
        row = BulkRow(**dict(zip(names, cells, strict=True)))
        if problem := row.find_contradiction():
            raise InputError(f"{path}, row {i} ({row.id!r:.100}): {problem}. {REPAIR}", code="E_DATA")
        yield row


def read_part_column(column: "pa.ChunkedArray", kind: type | None) -> list[Any]:
    """The cells of a column; lists of numbers as arrays of this kind, without a Python object per number."""
    if kind is not None:
        return [cell.values.to_numpy(zero_copy_only=False).astype(kind) if cell.is_valid else None for cell in column]
    cells = column.to_pylist()
    return [tuple(text or "" for text in cell) if isinstance(cell, list) else cell for cell in cells]
