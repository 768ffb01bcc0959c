"""Progress of a bulk run: a bar on a terminal, a line every twenty seconds elsewhere, with rate and time left."""

import sys
import time
from contextlib import suppress

from whyformer._plain.progress import ProgressBar, format_duration, is_interactive

LOG_SECONDS = 20.0


class BulkProgress(ProgressBar):
    """Counts items; those that were done before do not count for the rate."""

    def __init__(self, total: int, done_before: int) -> None:
        super().__init__(total, "bulk")
        self.done = self.done_before = done_before
        self.logged_at = self.started_at

    def describe(self, now: float) -> str:
        rate = (self.done - self.done_before) / max(now - self.started_at, 1e-9)
        left = (self.total - self.done) / rate if rate else 0.0
        counts = f"{self.done:,} of {self.total:,} items, {rate:,.3g} per second"
        return f"{self.label}: {counts}, {format_duration(left)} left"

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        now = time.monotonic()
        if not is_interactive() and now - self.logged_at > LOG_SECONDS and self.done < self.total:
            self.logged_at = now
            with suppress(OSError, ValueError):  # standard error that is closed or full is no reason to stop
                print(self.describe(now), file=sys.stderr, flush=True)
