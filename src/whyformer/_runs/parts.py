"""The parts of a bulk run: Parquet files with one row for each item and method, errors included.

    pandas.read_parquet("runs/photos/parts")                       all rows
    polars.read_parquet("runs/photos/parts/*.parquet")
    datasets.load_dataset("parquet", data_files="runs/photos/parts/*.parquet")

The same rows are the same bytes, whoever computed them. See seal.py for the checksum in each part.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from whyformer._runs.plan import PlanFields, RunPlan, get_plan_fields
from whyformer._runs.preparation import normalise_class_name
from whyformer._runs.seal import HEADER_KEY, make_unsealed_header, read_seal, read_sealed_file, seal_file
from whyformer._runs.store import DECODE_ERRORS, ShardFacts, ShardFolder
from whyformer.errors import InputError
from whyformer.show.score_rows import as_utf8

if TYPE_CHECKING:
    import pyarrow as pa

PARTS_FOLDER = "parts"
KINDS = ("image", "text", "tensors")
LAYOUT = 3  # of the parts; 2: without the answers with parts hidden; 1: without `content`
GROWING = ("data", "methods")  # the fields of a plan that a run can grow by: parts are the same with more of them
REPAIR = "Run whyformer bulk again with the same arguments: it replaces damaged parts."
# The columns of a part in order, with their types as pyarrow names them; in brackets: a list of these.
COLUMN_TYPES = {
    "id": "string", "position": "int64", "method": "string", "error": "string", "message": "string", "kind": "string",
    "source": "string", "label": "string", "prediction": "int32", "prediction_name": "string", "probability": "float",
    "target": "int32", "target_name": "string", "scores": "[float]", "rows": "int32", "columns": "int32",
    "tokens": "[string]", "special": "[bool]", "starts": "[int32]", "ends": "[int32]", "map_png": "binary",
    "content": "string", "hidden_units": "int32", "top_hidden": "float", "all_hidden": "float",
}  # fmt: skip
NOT_SUMMARISED = ("map_png", "hidden_units", "top_hidden", "all_hidden")  # not read again from parts
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
    content: str | None = None  # a hash of the input
    hidden_units: int | None = None  # how many words or patches `top_hidden` hides; None if this was not checked
    top_hidden: float | None = None  # the answer with the highest of them hidden: a probability if there is one
    all_hidden: float | None = None  # the same with every word or patch hidden

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
        self.fingerprint = fingerprint_parts(plan.fields)

    def read_facts(self, number: int) -> ShardFacts | None:
        checked = self._read_checked(number)
        return None if checked is None else checked[1]

    def read_table(self, number: int, columns: Collection[str] | None = None) -> "pa.Table | None":
        """The rows of a part, or those of these columns that it has; None if it is missing, damaged or foreign."""
        from pyarrow import BufferReader, parquet

        checked = self._read_checked(number)
        if checked is None:
            return None
        file = parquet.ParquetFile(BufferReader(checked[0]))
        names = [name for name in file.schema_arrow.names if columns is None or name in columns]
        return file.read(columns=names).replace_schema_metadata(None)

    def _read_checked(self, number: int) -> tuple[bytes, ShardFacts] | None:
        path = self.path(number)
        try:
            contents = path.read_bytes() if path.is_file() else b""  # reading a pipe would block for ever
        except OSError:
            return None
        facts = read_seal(contents)
        return (contents, facts) if facts is not None and is_part_of(facts, self.fingerprint, number) else None


def fingerprint_parts(fields: PlanFields) -> str:
    """Of everything in a plan that the rows of one item by one method depend on."""
    kept = {name: value for name, value in get_plan_fields(fields).items() if name not in GROWING}
    return RunPlan(kept).fingerprint


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

    cells = {name: [make_cell_storable(getattr(row, name)) for row in rows] for name in columns}
    return encode_table(pa.table(cells, schema=make_schema(columns)), number, fingerprint)


def encode_table(table: "pa.Table", number: int, fingerprint: str) -> bytes:
    from pyarrow import parquet

    cells = zip(table.column("position").to_pylist(), table.column("error").to_pylist(), strict=True)
    failed = len({position for position, error in cells if error is not None})
    facts = {"fingerprint": fingerprint, "shard": number, "rows": len(table), "failed": failed}
    sink = BytesIO()
    with parquet.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({HEADER_KEY: make_unsealed_header(facts)})  # in the file only, not in the schema
    return seal_file(sink.getvalue())


def merge_part(held: "pa.Table", computed: bytes, methods: Sequence[str]) -> bytes:
    """A part with computed rows put in: they replace those of the same item and method. methods: in their order."""
    import pyarrow as pa
    from pyarrow import BufferReader, parquet

    facts = read_seal(computed)
    assert facts is not None
    new = parquet.ParquetFile(BufferReader(computed)).read().replace_schema_metadata(None)
    replaced = set(list_row_keys(new, methods))
    kept = [i for i, key in enumerate(list_row_keys(held, methods)) if key not in replaced]
    table = pa.concat_tables([held.take(kept), new])
    keys = list_row_keys(table, methods)
    table = table.take(sorted(range(len(keys)), key=keys.__getitem__)).combine_chunks()
    # Parquet calls the values of a list "element", pyarrow "item": as when the rows were written first
    schema = pa.schema(
        (one.name, pa.list_(one.type.value_type) if pa.types.is_list(one.type) else one.type) for one in table.schema
    )
    return encode_table(table.cast(schema), facts["shard"], facts["fingerprint"])


def list_row_keys(table: "pa.Table", methods: Sequence[str]) -> list[tuple[int, int]]:
    """The order of the rows of a part: by item, then by method."""
    ranks = {label: rank for rank, label in enumerate(methods)}
    labels = table.column("method").to_pylist() if "method" in table.column_names else [None] * len(table)
    positions = table.column("position").to_pylist()
    return [(position, ranks.get(label, 0)) for position, label in zip(positions, labels, strict=True)]


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


def iterate_part_rows(path: Path, plan: PlanFields, number: int | None) -> Iterator[BulkRow]:
    """The rows of one part of a run, without their maps and checks, after its checksum was compared."""
    from pyarrow import BufferReader, parquet

    contents, facts = read_sealed_file(path, REPAIR)
    if not is_part_of(facts, fingerprint_parts(plan), number):
        if is_part_of(facts, RunPlan(get_plan_fields(plan)).fingerprint, number):  # parts were not to grow then
            raise InputError(f"{path} was written by an earlier version of whyformer. {REPAIR}", code="E_DATA")
        raise InputError(f"{path} belongs to another run, or to another place in it. {REPAIR}", code="E_DATA")
    names = [name for name in COLUMN_TYPES if name not in NOT_SUMMARISED]
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
