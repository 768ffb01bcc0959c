"""Progress: rate and time left; on a terminal a bar, elsewhere a line now and then."""

import sys
from io import StringIO

from whyformer._bulk import progress
from whyformer._bulk.progress import BulkProgress


def advance_at(monkeypatch, times, steps, *, total=1000, done_before=0):
    """What is printed when `steps` items are done at each of these times (seconds)."""
    clock = iter([0.0, *[time for time in times for _ in range(2)]])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "stderr", StringIO())
    bar = BulkProgress(total, done_before)
    for _ in times:
        bar.advance(steps)
    return sys.stderr.getvalue()


def test_a_line_every_twenty_seconds_where_there_is_no_terminal(monkeypatch):
    printed = advance_at(monkeypatch, [10.0, 25.0, 30.0, 50.0], 100)
    assert printed == (
        "bulk: 200 of 1,000 items, 8 per second, 1:40 left\nbulk: 400 of 1,000 items, 8 per second, 1:15 left\n"
    )


def test_what_was_done_before_does_not_count_for_the_rate(monkeypatch):
    printed = advance_at(monkeypatch, [25.0], 100, done_before=500)
    assert printed == "bulk: 600 of 1,000 items, 4 per second, 1:40 left\n"


def test_nothing_is_printed_at_the_end(monkeypatch):
    assert advance_at(monkeypatch, [25.0], 1000) == ""


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr("whyformer._plain.progress.is_interactive", lambda: True)
    monkeypatch.setattr(progress, "is_interactive", lambda: True)
    printed = advance_at(monkeypatch, [10.0], 100)
    assert printed == "\rbulk: 100 of 1,000 items, 10 per second, 1:30 left \x1b[K"


def test_a_closed_stream_is_no_reason_to_stop(monkeypatch):
    clock = iter([0.0, 25.0, 25.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    closed = StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setattr(progress, "is_interactive", lambda: False)
    monkeypatch.setattr("whyformer._plain.progress.is_interactive", lambda: False)
    counting = BulkProgress(1000, 0)
    counting.advance(1)
    assert counting.done == 1 and counting.logged_at == 25.0  # it came as far as the line that cannot be written
