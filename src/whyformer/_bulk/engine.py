"""An engine runs shards somewhere: in this process, in other processes, on a cluster.

    for task, part in engine.run(tasks, stop): ...

It yields the bytes of a part, or the error of a shard whose workers were lost too often. Rows do not depend on it.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Generic, Protocol, TypeAlias, TypeVar

from whyformer._bulk.queue import MAX_ATTEMPTS, Assignment, ShardQueue, ShardTask
from whyformer._bulk.stopping import StopRequest
from whyformer.errors import ResourceError, WhyformerError

Outcomes: TypeAlias = Generator[tuple[ShardTask, bytes | Exception], None, None]
# What a worker says: ("ready",), ("refused", code, text), ("part", bytes), ("failed", code, text), or that it is lost.
WorkerMessage: TypeAlias = tuple[str | bytes, ...]


class Worker(Protocol):
    """What an engine starts, once per process."""

    def run(self, task: ShardTask, upcoming: ShardTask | None = None) -> bytes: ...


class LocalWorker(Worker, Protocol):
    """A worker in this process: it asks now and then whether to give up."""

    check_stop: Callable[[], None]

    def close(self) -> None: ...


class Engine(Protocol):
    """Runs shards. Closing the iterator ends its workers."""

    @property
    def parallel(self) -> int | None:
        """How many shards are computed at once, if that is known."""

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes: ...


StartWorker: TypeAlias = Callable[[str], Worker]  # takes the device; can be pickled


class TeamWorker:
    """A worker elsewhere, as its team sees it."""

    is_ready = False


AnyWorker = TypeVar("AnyWorker", bound=TeamWorker)


class WorkerTeam(ABC, Generic[AnyWorker]):
    """Hands shards out to workers elsewhere. A worker that is lost is replaced, and its shard runs again."""

    max_failed_starts = MAX_ATTEMPTS  # in a row

    def __init__(self) -> None:
        self.workers: list[AnyWorker] = []

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes:
        queue, failed_starts = ShardQueue(tasks), 0
        try:
            self.connect()
            while not queue.is_finished:
                if stop and (not queue.busy or time.monotonic() >= stop.deadline):
                    return
                for worker, message in self.listen():
                    match message:
                        case ("ready",):
                            worker.is_ready, failed_starts = True, 0
                        case ("refused", str(code), str(text)):
                            raise WhyformerError(text, code=code)
                        case ("part", bytes(part)):
                            yield queue.finish(worker), part
                        case _:  # the worker is lost, or a shard raised what no item can be blamed for
                            failed_starts += not worker.is_ready
                            if failed_starts >= self.max_failed_starts:
                                raise self.make_start_error(worker, message)
                            given_up = queue.lose(worker)
                            self.replace(worker)
                            if given_up is not None:
                                yield given_up, make_shard_error(message, given_up)
                    self._hand_out(queue, stop)
                self._hand_out(queue, stop)
        finally:
            self.disconnect()

    def _hand_out(self, queue: ShardQueue, stop: StopRequest) -> None:
        """Give idle workers their next shard, if there is one; else they wait, because another may be lost."""
        for worker in self.workers:
            if worker.is_ready and not stop and worker not in queue.busy and (assignment := queue.take(worker)):
                self.send(worker, assignment)

    @abstractmethod
    def connect(self) -> None:
        """Get ready to start workers."""

    @abstractmethod
    def listen(self) -> Iterable[tuple[AnyWorker, WorkerMessage]]:
        """What workers say within some time."""

    @abstractmethod
    def send(self, worker: AnyWorker, assignment: Assignment) -> None: ...

    @abstractmethod
    def replace(self, worker: AnyWorker) -> None:
        """End a worker, and start another when there is room."""

    @abstractmethod
    def disconnect(self) -> None:
        """End all workers."""

    @abstractmethod
    def make_start_error(self, worker: AnyWorker, message: WorkerMessage) -> ResourceError: ...


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_shard_error(message: WorkerMessage, task: ShardTask) -> Exception:
    match message:
        case ("failed", str(code), str(text)):
            return WhyformerError(text, code=code)
    return make_lost_error(task, MAX_ATTEMPTS)


def make_lost_error(task: ShardTask, attempts: int) -> ResourceError:
    """Why every item of a shard has an error record."""
    return ResourceError(
        f"The worker ended {attempts} times while it computed this shard of {len(task.items)} items; it may have run "
        "out of memory. Use a smaller batch, then repeat the call with retry_failed=True.",
        code="E_WORKER",
    )
