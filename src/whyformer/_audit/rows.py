"""Rows: what was found about each example, written as it is found, so that an audit that is stopped goes on where it
was.

A folder holds `plan.json`, what is asked and of what, and `rows.jsonl`, one line a row. A line that was cut off in the
middle is forgotten; another plan in the same folder is refused.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whyformer._plain import archive
from whyformer.errors import InputError

RowKey = tuple[str, str, int]  # test, attention, example


class AuditRows:
    """Rows by test, attention and example; kept in memory alone where there is no folder."""

    def __init__(self, folder: str | os.PathLike[str] | None, plan: Mapping[str, Any]) -> None:
        self.held: dict[RowKey, dict[str, Any]] = {}
        self.file: Path | None = None
        if folder is not None:
            self.file = Path(folder) / "rows.jsonl"
            self._open(Path(folder), json.loads(json.dumps(plan)))

    def _open(self, folder: Path, plan: Mapping[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            known = folder / "plan.json"
            if known.exists():
                self._compare(folder, json.loads(known.read_text("utf-8")), plan)
                self._read()
            else:
                archive.write_file(known, json.dumps(plan, indent=1).encode())
                assert self.file is not None
                self.file.write_bytes(b"")
        except OSError as error:
            raise InputError(f"Cannot write to {folder}: {error.strerror or error}.") from None
        except ValueError:
            raise InputError(
                f"{folder / 'plan.json'} is no plan of an audit, or it is damaged. Give another folder."
            ) from None

    @staticmethod
    def _compare(folder: Path, held: Any, plan: Mapping[str, Any]) -> None:
        if held == plan:
            return
        names = sorted(set(plan) | set(held if isinstance(held, dict) else ()))
        other = [name for name in names if not isinstance(held, dict) or held.get(name) != plan.get(name)]
        raise InputError(
            f"{folder} holds another audit: {', '.join(other)} differ. Give another folder, or remove that one."
        )

    def _read(self) -> None:
        assert self.file is not None
        lines = self.file.read_bytes().split(b"\n") if self.file.exists() else []
        whole = []
        for line in lines:
            try:
                row = json.loads(line)
                self.held[row["test"], row["attention"], row["example"]] = row
            except (ValueError, KeyError, TypeError):
                continue
            whole.append(line)
        archive.write_file(self.file, b"".join(line + b"\n" for line in whole))

    def missing(self, test: str, attention: str, examples: Iterable[int]) -> bool:
        return any((test, attention, example) not in self.held for example in examples)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep these; on disk before anything else happens."""
        for row in rows:
            self.held[row["test"], row["attention"], row["example"]] = dict(row)
        if self.file is None or not rows:
            return
        try:
            with self.file.open("ab") as file:
                file.write(b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"Cannot write {self.file}: {error.strerror or error}.") from None

    def of(self, test: str, attention: str) -> list[dict[str, Any]]:
        """The rows of one test, by example."""
        found = [row for key, row in self.held.items() if key[:2] == (test, attention)]
        return sorted(found, key=lambda row: row["example"])
