"""Which worker computes which shard, and which shards run again because their worker was lost.

Engines with several workers share this bookkeeping. Each worker is told its next shard in advance, so that it can load
it while it computes.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker process must start fast, also where it only computes something small
    from whyformer._bulk.items import Item


@dataclass(frozen=True)
class ShardTask:
    """The items of one shard."""

    number: int
    items: "Sequence[Item]"


MAX_ATTEMPTS = 3  # workers that may be lost on one shard


@dataclass
class Assignment:
    """What a worker is busy with."""

    current: ShardTask
    upcoming: ShardTask | None


class ShardQueue:
    """Shards that wait, and shards that workers are busy with."""

    def __init__(self, tasks: Iterator[ShardTask]) -> None:
        self._tasks = tasks
        self._again: deque[ShardTask] = deque()
        self._reserved: dict[Hashable, ShardTask] = {}
        self.busy: dict[Hashable, Assignment] = {}
        self._attempts: Counter[int] = Counter()
        self._peeked: ShardTask | None = None

    def take(self, worker: Hashable) -> Assignment | None:
        """The next shard for a worker, and the one after it; None if nothing is left to hand out."""
        current = self._reserved.pop(worker, None) or self._next() or self._steal()
        if current is None:
            return None
        upcoming = self._next()
        if upcoming is not None:
            self._reserved[worker] = upcoming
        self.busy[worker] = Assignment(current, upcoming)
        return self.busy[worker]

    def finish(self, worker: Hashable) -> ShardTask:
        """A worker delivered its shard."""
        return self.busy.pop(worker).current

    def lose(self, worker: Hashable) -> ShardTask | None:
        """A worker is gone. Its shards run again; returns the shard that is given up, after too many workers."""
        if (reserved := self._reserved.pop(worker, None)) is not None:
            self._again.append(reserved)
        assignment = self.busy.pop(worker, None)
        if assignment is None:
            return None
        task = assignment.current
        self._attempts[task.number] += 1
        if self._attempts[task.number] >= MAX_ATTEMPTS:
            return task
        self._again.appendleft(task)
        return None

    @property
    def is_finished(self) -> bool:
        """Whether every shard was delivered or given up."""
        if self.busy or self._reserved or self._again:
            return False
        self._peeked = self._peeked or next(self._tasks, None)
        return self._peeked is None

    def _next(self) -> ShardTask | None:
        if self._again:
            return self._again.popleft()
        task, self._peeked = self._peeked or next(self._tasks, None), None
        return task

    def _steal(self) -> ShardTask | None:
        """A shard that was promised to another worker: better computed now than loaded in advance."""
        owner = next(iter(self._reserved), None)
        return None if owner is None else self._reserved.pop(owner)
