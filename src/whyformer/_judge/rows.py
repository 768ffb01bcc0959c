"""The rows of a judgement: one for each example, method and metric.

A shard holds the rows of one batch, ordered by example, method and metric. pandas.read_parquet("runs/pets/rows") reads
all of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from sys import intern
from typing import Literal

import numpy as np

from whyformer._judge.plan import JudgePlan
from whyformer._runs.store import ShardFormat, ShardStore
from whyformer.errors import InputError
from whyformer.show.score_rows import as_utf8

RowState = Literal["measured", "undefined", "missing", "failed"]
NAN = float("nan")
LATER_COLUMNS = ("undetermined",)  # numbers that a file has only where there are some
TEXT_COLUMNS = ("name", "method", "metric", "state", "reason", "note")


@dataclass(frozen=True, slots=True)
class Row:
    """The value of one metric for the explanation of one example by one method."""

    example: int
    name: str
    method: str
    metric: str
    value: float = NAN
    state: RowState = "measured"  # undefined: the metric has no value here; missing: no ground truth
    reason: str = ""
    note: str = ""  # about the example: its text was cut, or its label is not a class of the model
    label: int = -1  # the true class, -1 if it is not known
    target: int = -1  # the class that was explained
    predicted: int = -1
    probability: float = NAN  # of the target
    forward: float = NAN  # passes through the model that the explanation took
    backward: float = NAN
    relevance: float = NAN
    undetermined: float = NAN  # 1 if rounding may decide the order of the top scores, 0 if not; NaN without relevance
    agreement: float = NAN  # mean rank correlation between the methods on this example
    curve: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()

    def __repr__(self) -> str:
        """As for any dataclass, but without later columns that are empty: files are checked by a hash of it."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        shown = [f"{name}={value!r}" for name, value in values.items() if name not in LATER_COLUMNS or value == value]
        return f"Row({', '.join(shown)})"


@dataclass(frozen=True)
class Shard:
    """The rows of a batch, and the x values of each metric's curve."""

    rows: tuple[Row, ...]
    at: Mapping[str, Sequence[float]] = field(default_factory=dict)


class JudgeStore(ShardStore[Row]):
    """The shards of a judgement."""

    def __init__(self, folder: Path, plan: JudgePlan) -> None:
        self.plan = plan
        super().__init__(folder / "rows", plan, ShardFormat(".parquet", encode_judge_rows, decode_judge_rows))

    def write(self, number: int, shard: Shard) -> None:
        rows = [make_row_storable(row) for row in shard.rows]
        if not self.is_complete(number, rows):
            raise ValueError(f"shard {number} does not hold exactly the rows of its plan, in order")
        self.write_rows(number, rows, at=dict(shard.at))

    def read(self, number: int) -> Shard | None:
        """The shard; None if it is missing, damaged or of another plan."""
        stored = self.read_rows(number)
        if stored is None or "at" not in stored[1] or not self.is_complete(number, stored[0]):
            return None
        return Shard(stored[0], stored[1]["at"])

    def is_complete(self, number: int, rows: Sequence[Row]) -> bool:
        """Whether these are all rows of the shard, each exactly once and in order."""
        plan = self.plan
        methods, metrics = ([as_utf8(label) for label in labels] for labels in (plan.methods, plan.metrics))
        keys = [(e, m, k) for e in plan.indices(number) for m in methods for k in metrics]
        return [(row.example, row.method, row.metric) for row in rows] == keys

    def __iter__(self) -> Iterator[Shard]:
        for number in range(self.plan.shards):
            shard = self.read(number)
            if shard is None:
                raise InputError(
                    f"Rows are missing in {self.path(number)}. Run the same judgement again to make them.",
                    code="E_DATA",
                )
            yield shard


def make_row_storable(row: Row) -> Row:
    """The row, with text escaped that UTF-8 cannot encode, such as a file name in another encoding."""
    texts = {name: getattr(row, name) for name in TEXT_COLUMNS}
    escaped = {name: as_utf8(text) for name, text in texts.items()}
    return row if escaped == texts else replace(row, **escaped)


# --- files ------------------------------------------------------------------------------------------------------------


def encode_judge_rows(rows: Sequence[Row], header: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {column.name: [getattr(row, column.name) for row in rows] for column in fields(Row)}
    for name in LATER_COLUMNS:  # left out if empty
        if all(value != value for value in columns.get(name, ())):
            columns.pop(name, None)
    numbers = pa.list_(pa.float64())
    kinds = {int: pa.int64(), str: pa.string(), float: pa.float64(), RowState: pa.string()}
    kept = [column for column in fields(Row) if column.name in columns]
    types = [(column.name, kinds.get(column.type, numbers)) for column in kept]  # type: ignore[call-overload]
    table = pa.table(columns, schema=pa.schema(types, metadata={"whyformer": header}))
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def decode_judge_rows(path: Path) -> tuple[list[Row], str]:
    from pyarrow import parquet

    table = parquet.read_table(path, partitioning=None)
    header = (table.schema.metadata or {})[b"whyformer"].decode()
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    for name in ("name", "method", "metric", "state", "reason"):  # share one string between all rows
        columns[name] = [intern(word) for word in columns[name]]
    for name in ("curve", "parts"):
        columns[name] = [tuple(numbers) for numbers in columns[name]]
    names = [column.name for column in fields(Row) if column.name in columns or column.name not in LATER_COLUMNS]
    cells = zip(*(columns[name] for name in names), strict=True)
    return [Row(**dict(zip(names, row, strict=True))) for row in cells], header


# --- all rows ---------------------------------------------------------------------------------------------------------


def has_infinite_value(row: Row) -> bool:
    return math.isinf(row.value) or any(map(math.isinf, row.parts))


def drop_infinite_value(row: Row) -> Row:
    """An infinite value decides every mean it enters, so it counts as undefined."""
    if not has_infinite_value(row):
        return row
    return replace(row, value=NAN, parts=(), state="undefined", reason=f"the value is infinite ({row.value:+})")


class RowTable:
    """All rows of a plan as arrays, [example method metric], without infinite values."""

    def __init__(self, store: JudgeStore) -> None:
        shards = list(store)
        rows = [row for shard in shards for row in shard.rows]
        plan = store.plan
        self.methods, self.metrics = plan.methods, plan.metrics
        self.at: dict[str, tuple[float, ...]] = {k: tuple(v) for shard in shards for k, v in shard.at.items()}
        shape = (plan.total, len(plan.methods), len(plan.metrics))
        infinite = np.array([has_infinite_value(row) for row in rows]).reshape(shape)
        self.infinite = infinite & ~infinite.all(1, keepdims=True)  # one of all methods is not a fault of any
        self.all = np.empty(shape, dtype=object)
        self.all.reshape(-1)[:] = [drop_infinite_value(row) for row in rows]
        self.value = np.array([row.value for row in self.all.flat]).reshape(shape)

    def of(self, method: int, metric: int) -> list[Row]:
        return list(self.all[:, method, metric])

    def parts(self, method: int, metric: int) -> np.ndarray | None:
        """[example part], NaN for examples without parts; None if the metric has no parts."""
        return stack_with_nan([row.parts for row in self.of(method, metric)])

    def curves(self, method: int, metric: int) -> np.ndarray | None:
        """[example step], NaN for examples without a curve; None if the metric has no curves."""
        return stack_with_nan([row.curve for row in self.of(method, metric)])

    def examples(self) -> list[Row]:
        """One row per example, for the fields that all its rows share; one that did not fail, if there is one."""
        return [next((row for row in rows.flat if row.state != "failed"), rows.flat[0]) for rows in self.all]


def stack_with_nan(lists: Sequence[Sequence[float]]) -> np.ndarray | None:
    """[example step], with rows of NaN for examples that have no numbers."""
    longest = max((len(numbers) for numbers in lists), default=0)
    if not longest:
        return None
    return np.array([[*numbers] if len(numbers) == longest else [NAN] * longest for numbers in lists], dtype=np.float64)
