"""Progress on standard error: on a terminal one line, rewritten; in a log one every `LOG_SECONDS`.

In a notebook it is an output of the cell that is replaced, with a bar; what stays is one line with the time taken.

Activities nest, and the line shows all of them: `judging: 16 of 40, 1:10 left | leave-one-out: 64 of 200`. A thread
rewrites it, so that a long step is not silent. Nothing is shown during the first `DELAY_SECONDS` of an activity, or if
the environment variable WHYFORMER_PROGRESS is 0, as in worker processes.
"""

import html
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

DELAY_SECONDS = 0.7
TICK_SECONDS = 0.25
LOG_SECONDS = 30.0
SWITCH = "WHYFORMER_PROGRESS"
MEASURED_SECONDS = 2.0  # before a time left is shown
ERASE_REST = "\x1b[K"


class Activity(Protocol):
    """Something that a person waits for."""

    started_at: float
    is_logged: bool  # whether a log gets lines about it too

    def describe(self, now: float) -> str:
        """What the line says at this time."""


class Wait:
    """An activity of unknown length, such as opening a model. It is shown only while nothing inside it is."""

    is_logged = False

    def __init__(self, label: str) -> None:
        self.label = label
        self.started_at = time.monotonic()

    def describe(self, now: float) -> str:
        return f"{self.label}, {format_duration(now - self.started_at)}"


@dataclass
class Pace:
    """The time that work takes, measured from the end of its first part: what came before includes the start-up.

    parallel: parts that are worked on at once; None: unknown. Workers that began together end their first parts
    together, which says nothing about the others. So there must be more parts than that, or what is measured must take
    at least half as long as the first part.
    """

    started_at: float
    parallel: int | None = 1
    parts: int = 0
    first_at: float | None = None
    last_at: float = 0.0
    units: float = 0.0

    def count(self, units: float, now: float) -> None:
        """A part of so many units is done."""
        self.parts += 1
        self.units += 0 if self.first_at is None else units
        self.first_at, self.last_at = now if self.first_at is None else self.first_at, now

    @property
    def rate(self) -> float | None:
        """Units per second; None before enough was measured."""
        if self.first_at is None:
            return None
        seconds = self.last_at - self.first_at
        is_steady = self.parallel is not None and self.parts > 2 * self.parallel
        is_enough = is_steady or seconds >= (self.first_at - self.started_at) / 2
        return self.units / seconds if is_enough and seconds >= MEASURED_SECONDS else None

    def estimate_left(self, units: float, now: float) -> float | None:
        """The seconds that so many units will take, counted down between two parts."""
        if not self.rate:
            return None
        left = units / self.rate
        return max(left - (now - self.last_at), left / 20)


class ProgressBar:
    """How much is done, and the estimated time left; before there is an estimate, the time that has passed.

    is_uniform=False: the parts take very different times, so that those done say nothing about those left.
    """

    def __init__(
        self, total: int, label: str, *, is_logged: bool = False, is_uniform: bool = True, parallel: int | None = 1
    ) -> None:
        self.total, self.label, self.is_logged, self.is_uniform = total, label, is_logged, is_uniform
        self.done = 0
        self.started_at = time.monotonic()
        self.pace = Pace(self.started_at, parallel)

    def advance(self, count: int = 1) -> None:
        self.done += count
        self.pace.count(count, time.monotonic())

    def describe(self, now: float) -> str:
        return f"{self.label}: {self.done:,} of {self.total:,}, {self.describe_time(now)}"

    def describe_time(self, now: float) -> str:
        if self.total and self.done >= self.total:
            return format_duration(now - self.started_at)
        left = self.pace.estimate_left(max(self.total - self.done, 0), now) if self.is_uniform else None
        passed = now - self.started_at
        return f"{format_duration(passed)} so far" if left is None else f"{format_duration(left)} left"


class Writing(ProgressBar):
    """Tokens that a language model writes; transformers calls it as a streamer."""

    def __init__(self, most: int) -> None:
        super().__init__(most, "generating", is_uniform=False)
        self.ids: list[int] = []
        self._has_prompt = False

    def put(self, ids: Iterable[int]) -> None:
        """The tokens of the prompt, which come first, or one that was written."""
        if self._has_prompt:
            self.write(int(next(iter(ids))))
        self._has_prompt = True

    def write(self, token: int) -> None:
        self.ids.append(token)
        self.advance()

    def end(self) -> None:
        """Nothing is left to do when the text ends."""


class StatusLine:
    """The one line for all activities of the main thread, from the outermost to the innermost."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.logged_at = 0.0
        self.line = ""  # what is on the terminal, or in the cell
        self.cell = ""  # the output of a notebook that shows it
        self._lock = threading.RLock()
        self._ticker: threading.Thread | None = None

    def begin(self, activity: Activity) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or os.environ.get(SWITCH) == "0" or not (activity.is_logged or is_terminal()):
            return
        with self._lock:
            if not self.activities:
                self.logged_at = activity.started_at
            self.activities.append(activity)
            if self._ticker is None or not self._ticker.is_alive():
                self._ticker = threading.Thread(target=self._repeat, name="whyformer-progress", daemon=True)
                self._ticker.start()

    def end(self, activity: Activity) -> None:
        with self._lock:
            if activity in self.activities:
                self.activities.remove(activity)
            if not self.activities:
                if is_notebook() and self.line:
                    self._show_in_cell([activity], activity.describe(time.monotonic()))
                    self.line = ""
                with self.make_room():
                    pass

    @contextmanager
    def make_room(self) -> Iterator[None]:
        """Erase the line while the block prints something; it comes back with the next tick."""
        with self._lock:
            if self.line and not is_notebook():
                self._rewrite("")
            yield

    def show(self, now: float) -> None:
        """Write what is to be seen at this time."""
        with self._lock:
            shown = [one for one in self.activities if now - one.started_at >= DELAY_SECONDS]
            shown = [one for one in shown if one is shown[-1] or not isinstance(one, Wait)]
            if is_notebook():
                line = " | ".join(one.describe(now) for one in shown)
                if line not in ("", self.line):
                    self._show_in_cell(shown, line)
            elif is_terminal():
                line = fit_line([one.describe(now) for one in shown], measure_width())
                if line != self.line:
                    self._rewrite(line)
            elif now - self.logged_at >= LOG_SECONDS and any(one.is_logged for one in shown):
                self.logged_at = now
                self._write(next(one.describe(now) for one in shown if one.is_logged) + "\n")

    def _repeat(self) -> None:
        """Rewrite the line until there is nothing left to wait for."""
        while True:
            time.sleep(TICK_SECONDS)
            with self._lock:
                if not self.activities:
                    self._ticker = None
                    return
                self.show(time.monotonic())

    def _rewrite(self, line: str) -> None:
        """Replace what is shown."""
        self._write(f"\r{line}{ERASE_REST}")
        self.line = line

    def _show_in_cell(self, shown: list[Activity], line: str) -> None:
        """Replace the output of this cell that shows progress, one for all that the cell waits for."""
        from IPython import get_ipython

        shell: Any = get_ipython()
        name = f"whyformer-progress-{os.getpid()}-{shell.execution_count}"
        bar = next((one for one in shown if isinstance(one, ProgressBar)), None)
        meter = "" if bar is None else f'<progress value="{bar.done}" max="{max(bar.total, 1)}"></progress> '
        content = {"text/plain": line, "text/html": f"<div>{meter}{html.escape(line)}</div>"}
        shell.display_pub.publish(content, transient={"display_id": name}, update=self.cell == name)
        self.line, self.cell = line, name

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # standard error that is closed or full is no reason to stop
            sys.stderr.write(text)
            sys.stderr.flush()


STATUS_LINE = StatusLine()


@contextmanager
def replace_status_line(line: StatusLine) -> Iterator[None]:
    """Show activities on another line: a process that works for a server reports them instead."""
    global STATUS_LINE
    before, STATUS_LINE = STATUS_LINE, line
    try:
        yield
    finally:
        STATUS_LINE = before


@contextmanager
def hide_status_line() -> Iterator[None]:
    """Leave the terminal alone, for example while somebody types."""
    hidden = [*STATUS_LINE.activities]
    for activity in hidden:
        STATUS_LINE.end(activity)
    try:
        yield
    finally:
        for activity in hidden:
            STATUS_LINE.begin(activity)


@contextmanager
def show_activity(activity: Activity) -> Iterator[None]:
    """Show an activity while the block runs."""
    STATUS_LINE.begin(activity)
    try:
        yield
    finally:
        STATUS_LINE.end(activity)


@contextmanager
def show_progress(total: int, label: str, *, is_logged: bool = False, is_uniform: bool = True) -> Iterator[ProgressBar]:
    """Show a progress bar while the block runs."""
    bar = ProgressBar(total, label, is_logged=is_logged, is_uniform=is_uniform)
    with show_activity(bar):
        yield bar


def is_terminal() -> bool:
    """Whether standard error is a terminal or a notebook, in which a line can be rewritten."""
    try:
        return is_notebook() or (sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    except ValueError:  # closed
        return False


def is_notebook() -> bool:
    """Whether standard error goes to the output of a cell."""
    return type(sys.stderr).__module__.startswith("ipykernel")


def measure_width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def fit_line(parts: list[str], width: int) -> str:
    """The parts in one line, which must not wrap: a wrapped line cannot be rewritten."""
    line = " | ".join(parts)
    return line if len(line) < width else f"{line[: width - 4]}..."


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
