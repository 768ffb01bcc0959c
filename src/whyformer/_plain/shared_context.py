"""A context that several threads are in at once, for state that belongs to the whole process."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType


class SharedContext:
    """The first thread in enters the context, the last one out leaves it; in between, threads work at the same time."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._opened = make, ExitStack()
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._opened.enter_context(self._make())
            self._inside += 1

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._opened.close()
