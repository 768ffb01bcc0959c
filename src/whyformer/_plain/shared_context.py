"""Contexts that several threads are in at once, for state that belongs to the whole process.

NO_NATIVE_LINES drops what compiled code prints, such as libtiff about a damaged file, which no setting of Pillow keeps
it from.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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


STDERR = 2


@contextmanager
def drop_lines() -> Iterator[None]:
    """Standard error leads nowhere meanwhile, for the whole process; nothing is changed if it is closed."""
    try:
        kept = os.dup(STDERR)
    except OSError:
        kept = None
    try:
        if kept is not None:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), STDERR)
        yield
    finally:
        if kept is not None:
            os.dup2(kept, STDERR)
            os.close(kept)


NO_NATIVE_LINES = SharedContext(drop_lines)
