"""Rows on disk, in numbered shards that are complete or not there.

A shard names the fingerprint of its plan, its number and a checksum. It is written under a temporary name, forced to
disk, renamed and read back. A shard that is damaged, or belongs to another plan, reads as missing, so the run computes
it again.
"""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from whyformer._plain import archive
from whyformer._runs.lock import make_folder_error
from whyformer._runs.plan import RunPlan
from whyformer._runs.seal import ShardFacts
from whyformer.errors import OutputError, ResourceError

AnyRow = TypeVar("AnyRow")
# What json and pyarrow raise on a damaged file.
DECODE_ERRORS = (
    OSError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True)
class ShardFormat(Generic[AnyRow]):
    """How the rows and the header of a shard become a file, and back."""

    suffix: str
    encode: Callable[[Sequence[AnyRow], str], bytes]
    decode: Callable[[Path], tuple[Sequence[AnyRow], str]]


class ShardFolder(ABC):
    """The numbered files of a plan in a folder, each forced to disk before the next is written."""

    prefix, digits = "", 6

    def __init__(self, folder: Path, plan: RunPlan, suffix: str) -> None:
        self.folder, self.fingerprint, self.suffix = folder, plan.fingerprint, suffix
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise make_folder_error(folder, error) from None

    def path(self, number: int) -> Path:
        return self.folder / f"{self.prefix}{number:0{self.digits}}{self.suffix}"

    def numbers(self) -> list[int]:
        """The numbers of the files that are there, complete or not."""
        paths = (path for path in self.folder.glob(f"{self.prefix}*{self.suffix}") if path.is_file())
        names = (path.stem.removeprefix(self.prefix) for path in paths)
        return sorted(int(name) for name in names if name.isdecimal())

    @abstractmethod
    def read_facts(self, number: int) -> ShardFacts | None:
        """The facts of a shard; None if it is missing, damaged, or of another plan or number."""

    def write_file(self, number: int, contents: bytes) -> ShardFacts:
        """Write a shard under a temporary name, force it to disk, rename it and read it back; returns its facts."""
        try:
            archive.write_file(self.path(number), contents)
            sync_folder(self.folder)
        except OutputError as error:  # the folder could be written when the run began
            raise ResourceError(
                f"{error} {len(contents):,} bytes are needed. Files that are finished are kept: when the disk can be "
                "written again, repeat the call to resume.",
                code="E_DISK",
            ) from None
        if (facts := self.read_facts(number)) is None:
            raise ResourceError(
                f"{self.path(number)} was written but could not be read back. Check the disk, then repeat the call.",
                code="E_DISK",
            )
        return facts


class ShardStore(ShardFolder, Generic[AnyRow]):
    """Shards of rows, each with a hash of its rows. Rows need a `repr` that tells any two of them apart."""

    def __init__(self, folder: Path, plan: RunPlan, format: ShardFormat[AnyRow]) -> None:
        super().__init__(folder, plan, format.suffix)
        self.format = format

    def write_rows(self, number: int, rows: Sequence[AnyRow], **facts: Any) -> None:
        """Write a shard. `facts` are JSON values that describe it."""
        header = {**facts, "fingerprint": self.fingerprint, "shard": number, "rows": hash_rows(rows)}
        self.write_file(number, self.format.encode(rows, json.dumps(header, sort_keys=True)))

    def read_facts(self, number: int) -> ShardFacts | None:
        shard = self.read_rows(number)
        return None if shard is None else shard[1]

    def read_rows(self, number: int) -> tuple[tuple[AnyRow, ...], ShardFacts] | None:
        """The rows of a shard and its facts; None if it is missing, damaged or of another plan."""
        if not self.path(number).is_file():  # missing, or a pipe that would block for ever
            return None
        try:
            rows, header = self.format.decode(self.path(number))
            facts = json.loads(header)
            stored = (facts.pop("fingerprint"), facts.pop("shard"), facts.pop("rows"))
        except DECODE_ERRORS:  # pyarrow raises these
            return None
        return (tuple(rows), facts) if stored == (self.fingerprint, number, hash_rows(rows)) else None


def hash_rows(rows: Sequence[Any]) -> str:
    """SHA-256 of every row, so that a damaged file is noticed."""
    return hashlib.sha256("\n".join(map(repr, rows)).encode("utf-8", "backslashreplace")).hexdigest()


def sync_folder(folder: Path) -> None:
    """Force the names of new files to disk as well as their contents. Not possible, and not needed, on Windows."""
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise make_folder_error(folder, error) from None


# --- JSON lines -------------------------------------------------------------------------------------------------------


def encode_json_lines(values: Iterable[Any], header: str) -> bytes:
    """The header, then one JSON value a line. A NaN is refused with ValueError."""
    lines = [header, *(json.dumps(value, allow_nan=False) for value in values)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def decode_json_lines(path: Path) -> tuple[list[dict[str, Any]], str]:
    header, *lines = path.read_text("ascii").splitlines()
    return [archive.parse_json(line) for line in lines], header


JSON_LINES: ShardFormat[dict[str, Any]] = ShardFormat(".jsonl", encode_json_lines, decode_json_lines)
