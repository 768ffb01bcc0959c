"""The job of a bulk run: which rows are there, which are missing, and writing parts in a thread as they come."""

import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from whyformer._bulk.engine import Engine
from whyformer._bulk.held import HeldItems, hold_parts, list_items
from whyformer._bulk.items import Item, ItemList
from whyformer._bulk.plan import BulkPlan
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.rows import make_error_row
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.stopping import StopRequest
from whyformer._model import InputKind
from whyformer._plain.progress import STATUS_LINE, ProgressBar, show_activity
from whyformer._runs.parts import GROWING, PartStore, encode_part, merge_part
from whyformer._runs.plan import write_or_check_plan
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
    """What is there, and what is missing."""

    label = "bulk"  # of progress and notes
    growing: ClassVar[tuple[str, ...]] = GROWING  # fields of the plan that may change

    def __init__(
        self,
        plan: BulkPlan,
        items: ItemList,
        store: PartStore,
        methods: tuple[str, ...],
        kind: InputKind,
        held: HeldItems | None = None,
    ) -> None:
        self.plan, self.items, self.store, self.methods, self.kind = plan, items, store, methods, kind
        self.held = held or HeldItems()
        self.failed = self.computed = 0
        self.missing: dict[int, Sequence[int]] = {}  # by the number of the part: the indices of items
        self._retries = False

    @classmethod
    def begin(cls, folder: Path, plan: BulkPlan, items: ItemList, kind: InputKind, settings: BulkSettings) -> Self:
        """The job that fills this folder, which gets the plan and the list of items, in the order of its parts."""
        held = hold_parts(folder, plan, items, kind, grow=settings.grow)
        plan = plan.replace_data(items, kind)
        write_or_check_plan(plan, folder, growing=cls.growing, grow=settings.grow)
        list_items(folder, items, kind)
        job = cls(plan, items, PartStore(folder, plan), tuple(plan.fields["methods"]), kind, held)
        job.scan(retry_failed=settings.retry_failed)
        return job

    def scan(self, *, retry_failed: bool) -> None:
        """Find which items every part lacks; a damaged part lacks all."""
        self._retries = retry_failed
        self.refuse_foreign_files()
        for number in range(self.plan.shards):
            indices: Sequence[int] = self.plan.indices(number)
            if number in self.held.parts:
                indices = [index for index in indices if self.find_wanted(index)]
            elif (path := self.store.path(number)).exists():
                print_note(self.label, f"{path} is damaged or belongs to another run; it is computed again")
            if indices:
                self.missing[number] = indices
            else:
                self.failed += sum(index in self.held.failed for index in self.plan.indices(number))

    def find_wanted(self, index: int) -> tuple[str, ...]:
        """The methods that an item is still to be explained by."""
        if index not in self.held.placed:
            return self.methods
        wanted = self.held.list_wanted(index, retry_failed=self._retries)
        return tuple(label for label in self.methods if label in wanted)

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
        """Items that have to be computed, by some method at least."""
        return sum(map(len, self.missing.values()))

    def tasks(self) -> Iterator[ShardTask]:
        for number, indices in self.missing.items():
            yield ShardTask(number, [self.make_item(index) for index in indices])

    def make_item(self, index: int) -> Item:
        wanted = self.find_wanted(index)
        return self.items[index] if wanted == self.methods else replace(self.items[index], methods=wanted)

    def commit(self, task: ShardTask, part: bytes | Exception) -> None:
        """Write a part, with the rows that it has already; what could not be computed becomes error records."""
        if isinstance(part, Exception):
            part = self.make_error_part(task, part)
        held = self.store.read_table(task.number) if task.number in self.held.parts else None
        if held is not None:
            part = merge_part(held, part, self.methods)
        self.failed += self.store.write_file(task.number, part)["failed"]
        self.computed += len(task.items)

    def make_error_part(self, task: ShardTask, error: Exception) -> bytes:
        rows = [
            make_error_row(item, label, self.kind, error)
            for item in task.items
            for label in item.methods or self.methods
        ]
        return encode_part(rows, task.number, self.store.fingerprint)


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
