"""Stop a run on SIGINT or SIGTERM: finish the shards that are being computed, or give up after ten seconds.

The second signal stops at once.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 10.0


class StopOverdue(Exception):
    """A shard was not finished in time after a signal."""


class StopRequest:
    """Whether somebody asked the run to stop, and until when it may finish what it is doing."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.deadline = float("inf")

    def __bool__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Raise StopOverdue when the time is over."""
        if time.monotonic() > self.deadline:
            raise StopOverdue

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """The handler of both signals."""
        if self:
            raise KeyboardInterrupt
        self.signal, self.deadline = number, time.monotonic() + GRACE_SECONDS

    def raise_if_received(self) -> None:
        """End as the signal would have ended the process: KeyboardInterrupt, or exit status 143."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise SystemExit(128 + self.signal)


@contextmanager
def listen_for_stop() -> Iterator[StopRequest]:
    """Receive SIGINT and SIGTERM while the block runs. Only the main thread can; in others nothing changes."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
