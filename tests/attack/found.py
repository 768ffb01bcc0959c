"""What a group of attempts came to: what was raised raw, what hung, how long the longest took, how much memory grew."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

LONGEST = 60  # seconds of one attempt; more is a hang


class Hang(BaseException):
    """An attempt that takes too long."""


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise Hang after so many seconds; in the main thread only."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Found:
    """Each fault names its attempt, so that it can be made again."""

    tried: int = 0
    answered: int = 0  # with a result; the others with an error of ours
    lost: int = 0  # rows
    doubled: int = 0
    raw: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    longest: float = 0.0  # seconds
    resident: list[int] = field(default_factory=list)  # bytes, as they were measured

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """One attempt; the rest of a block that hangs is left out."""
        self.tried += 1
        with self.limit(name):
            yield

    @contextmanager
    def limit(self, name: str) -> Iterator[None]:
        """What has to end in time."""
        began = time.monotonic()
        try:
            with limit_time(LONGEST):
                yield
        except Hang:
            self.hangs.append(name)
        self.longest = max(self.longest, time.monotonic() - began)

    def measure(self, process: psutil.Process | None = None) -> None:
        self.resident.append((process or psutil.Process()).memory_info().rss)

    @property
    def grown(self) -> int:
        """The bytes that the process has at the most more than when it was first measured."""
        return max(self.resident) - self.resident[0] if self.resident else 0

    @property
    def faults(self) -> list[str]:
        rows = [f"{count} rows {what}" for count, what in ((self.lost, "lost"), (self.doubled, "doubled")) if count]
        return [*self.raw, *(f"hangs: {one}" for one in self.hangs), *rows]
