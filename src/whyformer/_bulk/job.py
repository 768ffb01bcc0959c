"""The job of a bulk run: which parts are there, which are missing, and writing them in a thread as they come."""

import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

from whyformer._bulk.engine import Engine
from whyformer._bulk.items import ItemList
from whyformer._bulk.plan import BulkPlan
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.rows import make_error_row
from whyformer._bulk.stopping import StopRequest
from whyformer._model import InputKind
from whyformer._plain.progress import STATUS_LINE, ProgressBar, show_activity
from whyformer._runs.parts import PartStore, encode_part
from whyformer.errors import OutputError, ResourceError
from whyformer.show.visible import make_visible

MAX_WAITING = 2  # parts that are computed but not written yet


class PartWriter:
    """Writes parts in the order in which they come; an error is raised by one of the next calls, or at the end."""

    def __init__(self, commit: Callable[[ShardTask, bytes | Exception], None]) -> None:
        self._commit = commit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="whyformer-writer")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "PartWriter":
        return self

    def write(self, task: ShardTask, part: bytes | Exception) -> None:
        """Returns at once, unless too many parts wait already."""
        self._waiting.append(self._thread.submit(self._commit, task, part))
        while self._waiting and (len(self._waiting) > MAX_WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what waits, also after an error; an interrupt drops it, except what is being written."""
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        self._thread.shutdown(cancel_futures=is_interrupt)
        if kind is None:
            for future in self._waiting:
                future.result()


class BulkProgress(ProgressBar):
    """Counts items; those that were done before do not count for the rate."""

    def __init__(self, total: int, done_before: int, parallel: int | None = 1, label: str = "bulk") -> None:
        super().__init__(total, label, is_logged=True, parallel=parallel)
        self.done = done_before

    def describe(self, now: float) -> str:
        rate = "" if self.pace.rate is None else f", {self.pace.rate:,.3g} per second"
        return f"{self.label}: {self.done:,} of {self.total:,} items{rate}, {self.describe_time(now)}"


class BulkJob:
    """The parts that are there, and those that are missing."""

    label = "bulk"  # of progress and notes

    def __init__(
        self, plan: BulkPlan, items: ItemList, store: PartStore, methods: tuple[str, ...], kind: InputKind
    ) -> None:
        self.plan, self.items, self.store, self.methods, self.kind = plan, items, store, methods, kind
        self.failed = self.computed = 0
        self.missing: list[int] = []

    def scan(self, *, retry_failed: bool) -> None:
        """Check every part that is there; damaged ones count as missing."""
        self.refuse_foreign_files()
        for number in range(self.plan.shards):
            header = self.store.read_facts(number)
            if header is None and (path := self.store.path(number)).exists():
                print_note(self.label, f"{path} is damaged or belongs to another run; it is computed again")
            if header is None or (retry_failed and header["failed"]):
                self.missing.append(number)
            else:
                self.failed += header["failed"]

    def refuse_foreign_files(self) -> None:
        """Readers take every Parquet file in the folder for a part."""
        known = {self.store.path(number).name for number in self.store.numbers() if number < self.plan.shards}
        for path in sorted(self.store.folder.glob("*.parquet")):
            if path.name not in known and not path.name.startswith("."):
                raise OutputError(f"{path} is not a part of this run. Move it elsewhere.", code="E_OUT_MISMATCH")

    def check_space(self, bytes_per_item: int) -> None:
        """Refuse to begin if the disk is too small for what is missing."""
        needed = int(1.2 * bytes_per_item * self.count_missing())
        free = shutil.disk_usage(self.store.folder).free
        if needed > free:
            raise ResourceError(
                f"The rows need about {needed:,} bytes, but the disk of {self.store.folder} has {free:,} free. Free "
                "some space, or use another folder.",
                code="E_DISK_FULL",
            )

    def count_missing(self) -> int:
        """Items in the missing parts."""
        return sum(len(self.plan.indices(number)) for number in self.missing)

    def tasks(self) -> Iterator[ShardTask]:
        for number in self.missing:
            yield ShardTask(number, [self.items[index] for index in self.plan.indices(number)])

    def commit(self, task: ShardTask, part: bytes | Exception) -> None:
        """Write a part; a shard that could not be computed becomes error records."""
        if isinstance(part, Exception):
            part = self.make_error_part(task, part)
        self.failed += self.store.write_file(task.number, part)["failed"]
        self.computed += len(task.items)

    def make_error_part(self, task: ShardTask, error: Exception) -> bytes:
        rows = [make_error_row(item, label, self.kind, error) for item in task.items for label in self.methods]
        return encode_part(rows, task.number, self.plan.fingerprint)


def run_missing(job: BulkJob, engine: Engine, stop: StopRequest) -> None:
    """Compute the missing parts, and write each while the next ones are computed."""
    total = job.count_missing()
    outcomes = engine.run(job.tasks(), stop)
    progress = BulkProgress(job.plan.total, job.plan.total - total, engine.parallel, job.label)
    with show_activity(progress):

        def commit(task: ShardTask, part: bytes | Exception) -> None:
            job.commit(task, part)
            progress.advance(len(task.items))

        with closing(outcomes), PartWriter(commit) as writer:
            for task, part in outcomes:
                writer.write(task, part)
    if job.computed < total:
        left = f"{total - job.computed:,} of {job.plan.total:,} items are left"
        print_note(job.label, f"stopped; {left}. Repeat the call to resume")
        stop.raise_if_received()


def print_note(label: str, text: str) -> None:
    """One line on standard error; nothing depends on it."""
    with STATUS_LINE.make_room(), suppress(OSError, ValueError):
        print(f"{label}: {make_visible(text)}", file=sys.stderr, flush=True)
