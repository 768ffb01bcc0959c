"""Rows on disk: one for each example, method and metric, in shards that are there whole or not at all.

A shard holds all rows of one batch, ordered by example, method and metric, and carries the plan's fingerprint. It is
written under a temporary name, forced to disk, read again and renamed; one that is damaged or of another plan is made
again. pandas.read_parquet("runs/pets/rows") reads them all.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from sys import intern
from typing import IO, Any, Literal

import numpy as np

from whyformer._judge.plan import JudgePlan
from whyformer._plain import archive
from whyformer.errors import InputError

RowState = Literal["measured", "undefined", "missing", "failed"]
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Row:
    """What one metric says about what one method says about one example."""

    example: int
    name: str
    method: str
    metric: str
    value: float = NAN
    state: RowState = "measured"  # undefined: the metric has no number here; missing: no truth; failed: see reason
    reason: str = ""
    note: str = ""  # on the example: that its text was cut, its label unknown to the model
    label: int = -1  # the true class, -1 if it is not known
    target: int = -1  # the class that was explained
    predicted: int = -1
    probability: float = NAN  # of the target
    forward: float = NAN  # passes through the model that the explanation took
    backward: float = NAN
    relevance: float = NAN
    agreement: float = NAN  # of the methods on this example: their mean rank correlation
    curve: tuple[float, ...] = ()
    parts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Shard:
    """The rows of a batch, and where the steps of each metric's curve are."""

    rows: tuple[Row, ...]
    at: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Store:
    """The shards of a plan in a folder."""

    def __init__(self, folder: Path, plan: JudgePlan) -> None:
        self.folder, self.plan = folder / "rows", plan
        self.suffix = ".parquet" if find_spec("pyarrow") is not None else ".jsonl"
        self.folder.mkdir(exist_ok=True)

    def path(self, shard: int) -> Path:
        return self.folder / f"{shard:06}{self.suffix}"

    def has(self, shard: int) -> bool:
        return self.read(shard) is not None

    def write(self, number: int, shard: Shard) -> None:
        self.check(number, shard)
        facts = {
            "fingerprint": self.plan.fingerprint,
            "shard": number,
            "at": dict(shard.at),
            "rows": hash_rows(shard.rows),
        }
        contents = FORMATS[self.suffix][0](shard.rows, json.dumps(facts, sort_keys=True))
        archive.write_file(self.path(number), contents)
        sync_folder(self.folder)

    def read(self, number: int) -> Shard | None:
        """The shard, if it is there, whole and of this plan."""
        try:
            rows, facts = FORMATS[self.suffix][1](self.path(number))
            held = json.loads(facts)
            if (held["fingerprint"], held["shard"], held["rows"]) != (self.plan.fingerprint, number, hash_rows(rows)):
                return None
            shard = Shard(rows, held["at"])
            self.check(number, shard)
        except (OSError, ValueError, KeyError, TypeError, NotImplementedError):  # pyarrow's own are some of these
            return None
        return shard

    def check(self, number: int, shard: Shard) -> None:
        """Every example, method and metric exactly once and in order."""
        plan = self.plan
        due = [(e, m, k) for e in plan.places(number) for m in plan.methods for k in plan.metrics]
        if [(row.example, row.method, row.metric) for row in shard.rows] != due:
            raise ValueError(f"shard {number} does not hold the rows that are due")

    def __iter__(self) -> Iterator[Shard]:
        for number in range(self.plan.shards):
            shard = self.read(number)
            if shard is None:
                raise InputError(f"Rows are missing in {self.path(number)}. Judge the same again to make them.")
            yield shard


def hash_rows(rows: Sequence[Row]) -> str:
    """Of every number and word, so that a damaged file is found out."""
    return hashlib.sha256("\n".join(map(repr, rows)).encode("utf-8", "backslashreplace")).hexdigest()


def lock_file(file: IO[str]) -> None:
    """Where the system has such locks; Windows has not."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Nobody else writes here meanwhile; the system lets go of the lock however this process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"Cannot write into the folder {folder}: {(error.strerror or str(error)).lower()}.") from None
    with file:
        try:
            lock_file(file)
        except OSError:
            file.seek(0)
            raise InputError(
                f"Process {file.read().strip() or 'of another machine'} is judging in {folder}. Wait, or give another "
                "folder."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for rest in (*folder.glob(".*.tmp"), *folder.glob("rows/.*.tmp")):  # of a process that was killed
            rest.unlink()
        yield


def sync_folder(folder: Path) -> None:
    """Force the name of a new file to disk, not only its contents; Windows does so by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- formats ----------------------------------------------------------------------------------------------------------


def shard_to_parquet(rows: Sequence[Row], facts: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {one.name: [getattr(row, one.name) for row in rows] for one in fields(Row)}
    numbers = pa.list_(pa.float64())
    kinds = {int: pa.int64(), str: pa.string(), float: pa.float64(), RowState: pa.string()}
    types = [(one.name, kinds.get(one.type, numbers)) for one in fields(Row)]  # type: ignore[call-overload]
    table = pa.table(columns, schema=pa.schema(types, metadata={"whyformer": facts}))
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def shard_from_parquet(path: Path) -> tuple[tuple[Row, ...], str]:
    from pyarrow import parquet

    table = parquet.read_table(path, partitioning=None)
    facts = (table.schema.metadata or {})[b"whyformer"].decode()
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    for name in ("name", "method", "metric", "state", "reason"):  # one copy of each word for all rows
        columns[name] = [intern(word) for word in columns[name]]
    return tuple(rows_from_columns(columns)), facts


def shard_to_jsonl(rows: Sequence[Row], facts: str) -> bytes:
    """JSON lines, where pyarrow is not installed: the facts, then a row a line."""
    lines = [facts, *(json.dumps(archive.as_json_value(asdict(row)), sort_keys=True) for row in rows)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def shard_from_jsonl(path: Path) -> tuple[tuple[Row, ...], str]:
    facts, *lines = path.read_text("ascii").splitlines()
    held = [archive.parse_json(line) for line in lines]
    return tuple(Row(**{**one, "curve": tuple(one["curve"]), "parts": tuple(one["parts"])}) for one in held), facts


def rows_from_columns(columns: Mapping[str, list[Any]]) -> Iterator[Row]:
    names = [one.name for one in fields(Row)]
    for values in zip(*(columns[name] for name in names), strict=True):
        held = dict(zip(names, values, strict=True))
        yield Row(**{**held, "curve": tuple(held["curve"]), "parts": tuple(held["parts"])})


FORMATS: dict[str, tuple[Any, Any]] = {
    ".parquet": (shard_to_parquet, shard_from_parquet),
    ".jsonl": (shard_to_jsonl, shard_from_jsonl),
}


# --- all of them ------------------------------------------------------------------------------------------------------


class RowTable:
    """All rows of a plan as arrays, [example method metric]."""

    def __init__(self, store: Store) -> None:
        shards = list(store)
        rows = [row for shard in shards for row in shard.rows]
        plan = store.plan
        self.methods, self.metrics = plan.methods, plan.metrics
        self.at: dict[str, tuple[float, ...]] = {k: tuple(v) for shard in shards for k, v in shard.at.items()}
        shape = (plan.examples, len(plan.methods), len(plan.metrics))
        self.all = np.empty(shape, dtype=object)
        self.all.reshape(-1)[:] = rows
        self.value = np.array([row.value for row in rows]).reshape(shape)

    def of(self, method: int, metric: int) -> list[Row]:
        return list(self.all[:, method, metric])

    def parts(self, method: int, metric: int) -> np.ndarray | None:
        """[example part], NaN where an example has none; None where the metric has none at all."""
        return stack_with_nan([row.parts for row in self.of(method, metric)])

    def curves(self, method: int, metric: int) -> np.ndarray | None:
        return stack_with_nan([row.curve for row in self.of(method, metric)])

    def examples(self) -> list[Row]:
        """One row for each example, for what is the same in all of them; one that did not fail, if there is one."""
        return [next((row for row in one.flat if row.state != "failed"), one.flat[0]) for one in self.all]


def stack_with_nan(held: Sequence[Sequence[float]]) -> np.ndarray | None:
    """[example step] with NaN rows for the examples that have nothing."""
    longest = max((len(one) for one in held), default=0)
    if not longest:
        return None
    return np.array([[*one] if len(one) == longest else [NAN] * longest for one in held], dtype=np.float64)
