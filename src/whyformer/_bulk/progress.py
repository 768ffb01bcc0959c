"""Progress of a bulk run, with its rate and the time left."""

from whyformer._plain.progress import ProgressBar


class BulkProgress(ProgressBar):
    """Counts items; those that were done before do not count for the rate."""

    def __init__(self, total: int, done_before: int, parallel: int | None = 1) -> None:
        super().__init__(total, "bulk", is_logged=True, parallel=parallel)
        self.done = done_before

    def describe(self, now: float) -> str:
        rate = "" if self.pace.rate is None else f", {self.pace.rate:,.3g} per second"
        return f"{self.label}: {self.done:,} of {self.total:,} items{rate}, {self.describe_time(now)}"
