"""An engine runs shards somewhere: in this process, in other processes, on a cluster.

    for task, part in engine.run(tasks, stop): ...

It yields the bytes of a part, or the error of a shard whose workers were lost too often. Rows do not depend on it.
"""

import os
from collections.abc import Callable, Generator, Iterator
from typing import Protocol, TypeAlias

from whyformer._bulk.stopping import StopRequest
from whyformer._bulk.task import ShardTask
from whyformer.errors import ResourceError

Outcomes: TypeAlias = Generator[tuple[ShardTask, bytes | Exception], None, None]


class Worker(Protocol):
    """What an engine starts, once per process."""

    def run(self, task: ShardTask, upcoming: ShardTask | None = None) -> bytes: ...


class Engine(Protocol):
    """Runs shards. Closing the iterator ends its workers."""

    @property
    def parallel(self) -> int | None:
        """How many shards are computed at once, if that is known."""

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes: ...


StartWorker: TypeAlias = Callable[[str], Worker]  # takes the device; can be pickled


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_lost_error(task: ShardTask, attempts: int) -> ResourceError:
    """Why every item of a shard has an error record."""
    return ResourceError(
        f"The worker ended {attempts} times while it computed this shard of {len(task.items)} items; it may have run "
        "out of memory. Use a smaller batch, then repeat the call with retry_failed=True.",
        code="E_WORKER",
    )
