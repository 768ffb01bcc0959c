"""A progress bar on standard error.

Nothing is shown during the first second, or when standard error is not a terminal.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

DELAY_SECONDS = 1.0
REFRESH_SECONDS = 0.2


class ProgressBar:
    """One line: how much is done, and the estimated time left."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label = total, label
        self.done = 0
        self.started_at = self.shown_at = time.monotonic()
        self.is_shown = False

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.started_at > DELAY_SECONDS and now - self.shown_at > REFRESH_SECONDS and is_interactive():
            self.shown_at, self.is_shown = now, True
            print(f"\r{self.describe(now)} \x1b[K", end="", file=sys.stderr)

    def describe(self, now: float) -> str:
        """What the line says at this time."""
        left = (now - self.started_at) / max(self.done, 1) * max(self.total - self.done, 0)
        return f"{self.label}: {self.done} of {self.total}, {format_duration(left)} left"

    def close(self) -> None:
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def show_progress(total: int, label: str) -> Iterator[ProgressBar]:
    """Show a progress bar while the block runs."""
    bar = ProgressBar(total, label)
    try:
        yield bar
    finally:
        bar.close()


def is_interactive() -> bool:
    return threading.current_thread() is threading.main_thread() and sys.stderr is not None and sys.stderr.isatty()


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
