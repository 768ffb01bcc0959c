"""The folders of bulk runs that were named at the start: their items, a page of them at a time.

A folder may come from somebody else, so a process with limits reads it. No path and no model that it names is opened:
an item is explained again by a model of the server.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from whyformer._page.bodies import RunBody, RunMapBody
from whyformer._page.limited_process import LimitedProcess, answer_each
from whyformer._page.limits import Limits
from whyformer._page.messages import read_message, write_message
from whyformer._page.problems import PageProblem

PLAN = "plan.json"
PAGE_ROWS = 20
MOST_ROWS = 50_000
ORDERS = {
    "stored": (lambda row: True, lambda row: 0.0),
    "wrong": (lambda row: row["is_right"] is False, lambda row: -(row["probability"] or 0.0)),  # the surest first
    "unsure": (lambda row: row["probability"] is not None, lambda row: row["probability"]),
    "failed": (lambda row: row["error"] is not None, lambda row: 0.0),
}


def is_stored_run(name: str) -> bool:
    return Path(name, PLAN).is_file()


class StoredRuns(LimitedProcess):
    """The runs of one server, and the process that reads them."""

    def __init__(self, folders: Sequence[str], limits: Limits) -> None:
        super().__init__(limits, __name__, "serve_runs")
        self.folders, self.reading = [Path(one).expanduser().resolve() for one in folders], ThreadPoolExecutor(1)

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self.folders]

    async def list_rows(self, body: RunBody) -> dict[str, Any]:
        """A page of the items of a run."""
        fields, _ = await self.read(body.run, "rows", {"order": body.order, "offset": body.offset})
        return {"name": self.names[body.run], **fields}

    async def read_map(self, body: RunMapBody) -> bytes:
        """The file of the map that was stored with an item."""
        _, (found,) = await self.read(body.run, "map", {"part": body.part, "row": body.row})
        return found

    async def read(self, run: int, what: str, fields: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        if run >= len(self.folders):
            raise PageProblem("E_DATA", f"There is no run {run}: the server has {len(self.folders)}.")
        message = write_message({"folder": str(self.folders[run]), "what": what, **fields})
        loop = asyncio.get_running_loop()
        found, blobs = await loop.run_in_executor(self.reading, self.read_now, message)
        if "code" in found:
            raise PageProblem(found["code"], found["message"])
        return found, blobs

    def read_now(self, message: bytes) -> tuple[dict[str, Any], list[bytes]]:
        try:
            return read_message(self.ask(*self.start(), message, self.limits.decode_seconds))
        except TimeoutError:
            raise PageProblem("E_DATA", "Reading this run took too long, so it was given up.") from None
        except (EOFError, OSError):
            raise PageProblem("E_DATA", "This run is damaged, or too large to be read.") from None


# --- in the process ---------------------------------------------------------------------------------------------------


def serve_runs(descriptor: int) -> None:
    """Read what is asked for until the server goes away."""
    from pyarrow import parquet, set_cpu_count, set_io_thread_count  # before the memory is limited

    import whyformer._summary.rows  # noqa: F401

    assert parquet
    set_cpu_count(1)
    set_io_thread_count(1)
    answer_each(descriptor, answer_safely)


def answer_safely(message: bytes) -> bytes:
    from whyformer.errors import WhyformerError

    fields, _ = read_message(message)
    try:
        return answer_rows(**fields) if fields.pop("what") == "rows" else answer_map(**fields)
    except WhyformerError as error:
        return write_message({"code": error.code, "message": str(error)})
    except MemoryError:
        return write_message({"code": "E_DATA", "message": "Reading this run takes more memory than is allowed."})
    except Exception:
        return write_message({"code": "E_DATA", "message": "This run cannot be read: it is damaged."})


@lru_cache(1)
def read_run(folder: str, changed: float) -> dict[str, Any]:
    """What the run was made with, and its rows without their scores. changed: when a part was written last."""
    from whyformer._summary.rows import open_stored_run

    stored = open_stored_run(Path(folder))
    rows: list[dict[str, Any]] = []
    for number in stored.parts:
        for place, row in enumerate(stored.iterate_rows(number)):
            shown = {name: getattr(row, name) for name in ("id", "method", "kind", "label", "is_right", "error")}
            texts = {"answer": row.prediction_name or row.target_name, "message": row.message}
            source = Path(row.source or "").name if row.kind == "image" else row.source
            chance = row.probability if row.probability is not None and isfinite(row.probability) else None
            rows.append({"part": number, "row": place, "source": source, "probability": chance, **shown, **texts})
        if len(rows) > MOST_ROWS:
            break
    notes = [*stored.notes, *([f"Only the first {len(rows):,} rows are listed."] if len(rows) > MOST_ROWS else [])]
    return {"model": stored.model_name, "data": stored.find_name("data"), "notes": notes, "rows": rows}


def answer_rows(folder: str, order: str, offset: int) -> bytes:
    changed = max((path.stat().st_mtime for path in Path(folder, "parts").glob("*.parquet")), default=0.0)
    run = read_run(folder, changed)
    keep, key = ORDERS[order]
    chosen = sorted(filter(keep, run["rows"]), key=key)
    shown = {"rows": chosen[offset : offset + PAGE_ROWS], "total": len(chosen), "of": len(run["rows"])}
    return write_message(run | shown)


def answer_map(folder: str, part: int, row: int) -> bytes:
    from whyformer._runs.parts import read_part
    from whyformer._summary.rows import open_stored_run

    path = open_stored_run(Path(folder)).parts.get(part)
    cells = [] if path is None else read_part(path, ["map_png"]).column("map_png").to_pylist()
    if row >= len(cells) or not cells[row]:
        return write_message({"code": "E_DATA", "message": "The run stored no map of this item (bulk --maps does)."})
    return write_message({}, cells[row])
