"""Progress of long work, on standard error, where somebody is looking at it.

Nothing is shown within the first second, nor when standard error is no terminal: then there is nobody to tell.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

DELAY_SECONDS = 1.0  # seconds
REFRESH_SECONDS = 0.2


class ProgressBar:
    """One line that says how much is done and how long the rest will take."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label = total, label
        self.done = 0
        self.began = self.shown_at = time.monotonic()
        self.is_shown = False

    def advance(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.began > DELAY_SECONDS and now - self.shown_at > REFRESH_SECONDS and is_interactive():
            self.shown_at, self.is_shown = now, True
            left = (now - self.began) / max(self.done, 1) * max(self.total - self.done, 0)
            print(
                f"\r{self.label}: {self.done} of {self.total}, {format_duration(left)} left \x1b[K",
                end="",
                file=sys.stderr,
            )

    def close(self) -> None:
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def show_progress(total: int, label: str) -> Iterator[ProgressBar]:
    """A bar for as long as the block runs; an outer one is silent while an inner one shows."""
    made = ProgressBar(total, label)
    try:
        yield made
    finally:
        made.close()


def is_interactive() -> bool:
    return threading.current_thread() is threading.main_thread() and sys.stderr is not None and sys.stderr.isatty()


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
