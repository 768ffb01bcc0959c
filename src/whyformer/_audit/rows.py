"""The rows of an audit, written as they are computed, so that an audit that was interrupted can be resumed.

The folder holds `plan.json` and `rows/`, see whyformer._runs. Rows of version 0.1 (one file, rows.jsonl) are not read:
their plan has another hash of the weights, so the folder is refused.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

from whyformer._audit.checks import AuditRow
from whyformer._plain import archive
from whyformer._runs.lock import lock_folder
from whyformer._runs.plan import RunPlan, write_or_check_plan
from whyformer._runs.store import JSON_LINES, ShardStore


class AuditRows:
    """Rows by test, attention and example. Without a folder they are in memory only.

    The folder is locked until `close()`, the end of a `with` block, or until nothing refers to this object.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, plan: archive.Fields) -> None:
        self.stored: dict[tuple[str, str, int], AuditRow] = {}
        self._store: ShardStore[dict[str, Any]] | None = None
        self._lock = ExitStack()
        if folder is not None:
            self._lock.enter_context(lock_folder(Path(folder)))
            try:
                self._open(Path(folder), RunPlan(archive.as_json_value(plan), "audit"))
            except BaseException:
                self.close()
                raise

    def _open(self, folder: Path, plan: RunPlan) -> None:
        write_or_check_plan(plan, folder)
        self._store = ShardStore(folder / "rows", plan, JSON_LINES)
        stored = {number: self._store.read_rows(number) for number in self._store.numbers()}
        for shard in stored.values():
            self._keep(shard[0] if shard is not None else ())
        self._free_numbers: Iterator[int] = (number for number in count() if stored.get(number) is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def missing(self, test: str, attention: str, examples: Iterable[int]) -> bool:
        """Whether a row of these examples has yet to be computed."""
        return any((test, attention, example) not in self.stored for example in examples)

    def add(self, rows: Sequence[AuditRow]) -> None:
        """Keep these rows, but not those that are kept already. When this returns they are on disk."""
        rows = [row for row in rows if self.missing(row["test"], row["attention"], [row["example"]])]
        if self._store is not None and rows:
            written = [json.loads(json.dumps(row, allow_nan=False)) for row in rows]  # as they will read back
            self._store.write_rows(next(self._free_numbers), written)
            rows = written
        self._keep(rows)

    def add_test(self, test: str, attention: str, batch: Sequence[int], found: Sequence[AuditRow | None]) -> None:
        """Add one row per example; None is an example for which the test is undefined."""
        self.add(
            [
                {**({"undefined": True} if row is None else row), "test": test, "attention": attention, "example": i}
                for i, row in zip(batch, found, strict=True)
            ]
        )

    def _keep(self, rows: Iterable[AuditRow]) -> None:
        for row in rows:
            self.stored[row["test"], row["attention"], row["example"]] = dict(row)

    def of(self, test: str, attention: str) -> list[AuditRow]:
        """The rows of one test, by example."""
        rows = [row for key, row in self.stored.items() if key[:2] == (test, attention)]
        return sorted(rows, key=lambda row: row["example"])
