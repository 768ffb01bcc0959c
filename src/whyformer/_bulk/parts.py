"""The parts of a bulk run: Parquet files with one row for each item and method, errors included.

    pandas.read_parquet("runs/photos/parts")                       all rows
    polars.read_parquet("runs/photos/parts/*.parquet")
    datasets.load_dataset("parquet", data_files="runs/photos/parts/*.parquet")

The same rows are the same bytes, whoever computed them. See seal.py for the checksum in each part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import Any

from whyformer._bulk.plan import BulkPlan
from whyformer._runs.seal import HEADER_KEY, make_unsealed_header, read_seal, read_sealed_file, seal_file
from whyformer._runs.store import ShardFolder
from whyformer.show.score_rows import as_utf8

FOLDER = "parts"
REPAIR = "Run whyformer bulk again with the same arguments: it replaces damaged parts."


@dataclass(frozen=True, slots=True)
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
    scores: Any = None  # of patches, row by row; or of tokens, special ones included
    rows: int | None = None  # of the grid of patches
    columns: int | None = None
    tokens: Sequence[str] | None = None
    special: Sequence[bool] | None = None
    starts: Sequence[int] | None = None  # characters of `source`; -1 where a token has none
    ends: Sequence[int] | None = None
    map_png: bytes | None = None


ORDER = (
    "id", "position", "method", "error", "message", "kind", "source", "label", "prediction", "prediction_name",
    "probability", "target", "target_name", "scores", "rows", "columns", "tokens", "special", "starts", "ends",
    "map_png",
)  # fmt: skip


def make_schema() -> Any:
    """The columns of a part."""
    import pyarrow as pa

    types = {
        "position": pa.int64(),
        "prediction": pa.int32(),
        "probability": pa.float32(),
        "target": pa.int32(),
        "scores": pa.list_(pa.float32()),
        "rows": pa.int32(),
        "columns": pa.int32(),
        "tokens": pa.list_(pa.string()),
        "special": pa.list_(pa.bool_()),
        "starts": pa.list_(pa.int32()),
        "ends": pa.list_(pa.int32()),
        "map_png": pa.binary(),
    }
    return pa.schema([(name, types.get(name, pa.string())) for name in ORDER])


def encode_part(rows: Sequence[BulkRow], number: int, fingerprint: str) -> bytes:
    """The file of a shard: its rows, and a header with the fingerprint of the plan and the number of failed items."""
    import pyarrow as pa
    from pyarrow import parquet

    failed = len({row.position for row in rows if row.error is not None})
    header = make_unsealed_header({"fingerprint": fingerprint, "shard": number, "rows": len(rows), "failed": failed})
    columns = {name: [make_cell_storable(getattr(row, name)) for row in rows] for name in ORDER}
    sink, schema = BytesIO(), make_schema()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        writer.write_table(pa.table(columns, schema=schema))
        writer.add_key_value_metadata({HEADER_KEY: header})  # in the file only: the schema is stored twice
    return seal_file(sink.getvalue())


def make_cell_storable(value: Any) -> Any:
    """Escape what UTF-8 cannot encode, also inside lists of tokens."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return [as_utf8(text) for text in value]
    return as_utf8(value)


def read_part(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The rows of a part as a pyarrow table, after its checksum was compared."""
    from pyarrow import BufferReader, parquet

    contents, _ = read_sealed_file(path, REPAIR)
    return parquet.ParquetFile(BufferReader(contents)).read(columns=columns)


class PartStore(ShardFolder):
    """The parts of a plan: part-00000.parquet, part-00001.parquet, ..."""

    prefix, digits = "part-", 5

    def __init__(self, folder: Path, plan: BulkPlan) -> None:
        super().__init__(folder / FOLDER, ".parquet")
        self.fingerprint = plan.fingerprint

    def write_part(self, number: int, contents: bytes) -> Mapping[str, Any]:
        """Write a part and read it back; returns its header."""
        self.write_file(number, contents)
        header = self.check_part(number)
        if header is None:
            raise self.make_damage_error(number)
        return header

    def check_part(self, number: int) -> Mapping[str, Any] | None:
        """The header of a part; None if it is missing, damaged, or of another plan or number."""
        path = self.path(number)
        try:
            header = read_seal(path.read_bytes()) if path.is_file() else None  # reading a pipe would block for ever
        except OSError:
            return None
        if header is None or (header.get("fingerprint"), header.get("shard")) != (self.fingerprint, number):
            return None
        return header


assert {field.name for field in fields(BulkRow)} == set(ORDER)
