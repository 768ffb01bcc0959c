"""Writes parts in a thread while the next ones are computed."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from whyformer._bulk.task import ShardTask

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
