"""How far an audit is: one line for all of its work, from the first batch to the last search.

Each kind of work (agreement, search, ...) is planned in units of its own and has a cost per unit: measured as soon as
some of it is done, before that a guess, corrected by how far off the guesses for the other kinds were. From these comes
the time left; what passes until the first report is start-up and does not count. 100 % is shown by nothing but the end.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from whyformer._plain.progress import MEASURED_SECONDS, format_duration, show_activity

MOST_SHOWN = 0.99  # before the end
GUESSED_SECONDS = {  # per unit, see Auditor.plan_work; with the model demo/sentiment on one core
    "agreement": 3e-4, "replacement": 7e-4, "adversarial": 2e-5, "adversary": 2e-3, "seeds": 1e-4,
    "baseline": 2e-5, "diagnostic": 0.4,
}  # fmt: skip
WORK_LABELS = {
    "agreement": "comparing with measures of importance",
    "replacement": "replacing weights",
    "adversarial": "searching for other attention",
    "adversary": "training an adversary",
    "seeds": "comparing with other seeds",
    "baseline": "predicting with uniform attention",
    "diagnostic": "training small models",
}
Advance = Callable[[float], None]


class AuditProgress:
    """What is planned, what is done, and what it took."""

    is_logged = True

    def __init__(self, planned: Mapping[str, float]) -> None:
        self.planned = {kind: units for kind, units in planned.items() if units > 0}
        self.done = dict.fromkeys(WORK_LABELS, 0.0)
        self.measured = dict.fromkeys(WORK_LABELS, 0.0)  # units, without those of the first report
        self.seconds = dict.fromkeys(WORK_LABELS, 0.0)  # that the measured units took
        self.started_at = self.advanced_at = time.monotonic()
        self.kind = next(iter(self.planned), "agreement")
        self._most = 0.0

    def advance(self, kind: str, units: float) -> None:
        """Some work of this kind is done; it took the time since the last call."""
        now = time.monotonic()
        if any(self.done.values()):
            self.measured[kind] += units
            self.seconds[kind] += now - self.advanced_at
        self.kind = kind
        self.done[kind] += units
        self.planned[kind] = max(self.planned.get(kind, 0.0), self.done[kind])
        self.advanced_at = now

    def skip(self, kind: str, units: float) -> None:
        """This work was planned, but need not be done."""
        self.planned[kind] = max(self.planned.get(kind, 0.0) - units, self.done[kind])

    def count(self, kind: str, units: float = 1.0) -> Advance:
        """Begin this kind of work. Returns a function that advances it by a share of these units."""
        self.begin(kind)
        return lambda share: self.advance(kind, share * units)

    def begin(self, kind: str) -> None:
        """What the line names from now on."""
        self.kind = kind

    def estimate_left(self, now: float) -> float:
        """The seconds until everything planned is done."""
        left = sum((units - self.done[kind]) * self._cost(kind) for kind, units in self.planned.items())
        return max(left - (now - self.advanced_at), left / 20)

    def _cost(self, kind: str) -> float:
        """Seconds per unit."""
        if self.measured[kind] > 0:
            return self.seconds[kind] / self.measured[kind]
        guessed = sum(units * GUESSED_SECONDS[other] for other, units in self.measured.items())
        return GUESSED_SECONDS[kind] * (sum(self.seconds.values()) / guessed if guessed > 0 else 1.0)

    def measure_share(self, now: float) -> float:
        """The share of the work that is done, by time; it never falls."""
        elapsed, left = now - self.started_at, self.estimate_left(now)
        share = elapsed / (elapsed + left) if elapsed + left > 0 else 0.0
        self._most = max(self._most, min(share, MOST_SHOWN))
        return self._most

    def describe(self, now: float) -> str:
        """What the line says."""
        if sum(self.seconds.values()) < MEASURED_SECONDS:
            return f"audit: 0 %, estimating the time left, {WORK_LABELS[self.kind]}"
        left = format_duration(self.estimate_left(now))
        return f"audit: {int(100 * self.measure_share(now))} %, {left} left, {WORK_LABELS[self.kind]}"


@contextmanager
def show_audit_progress(planned: Mapping[str, float]) -> Iterator[AuditProgress]:
    """Show the progress while the block runs."""
    progress = AuditProgress(planned)
    with show_activity(progress):
        yield progress
