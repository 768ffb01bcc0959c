"""What a group of attempts came to: what was raised raw, what hung, how long the longest took, how much memory grew."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

LONGEST = 60  # seconds of the processor in one attempt; more is a hang
BLOCKED = 900  # seconds of an attempt that may do nothing; a machine that is busy with other work needs some


class Hang(BaseException):
    """An attempt that takes too long."""


@contextmanager
def limit_time(seconds: float, blocked: float = BLOCKED) -> Iterator[list[int]]:
    """Raise Hang after so many seconds of the processor, or of doing nothing; in the main thread only.

    The list tells whether it was raised: what is attacked may have taken it for a bug.
    """
    hung: list[int] = []

    def stop(number: int, _: object) -> None:
        hung.append(number)
        raise Hang

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, blocked)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield hung
    finally:
        for timer, _ in timers.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Found:
    """Each fault names its attempt, so that it can be made again."""

    tried: int = 0
    answered: int = 0  # with a result; the others with an error of ours
    lost: int = 0  # rows
    doubled: int = 0
    raw: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    longest: float = 0.0  # seconds of the processor in this process; of requests, by the clock
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
        began, hung = time.process_time(), list[int]()
        try:
            with limit_time(LONGEST) as hung:
                yield
        except Hang:
            pass
        if hung:
            self.hangs.append(name)
        self.longest = max(self.longest, time.process_time() - began)

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
