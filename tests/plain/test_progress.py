"""Progress on standard error: only on a terminal, only after a second, and wiped at the end."""

import io
import sys

import pytest

from whyformer._plain import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets: clock[0]."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_shows_the_count_and_the_time_left(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.show_progress(40, "explaining") as bar:
        clock[0] = 30.0
        bar.advance(10)
        assert sys.stderr.getvalue() == "\rexplaining: 10 of 40, 1:30 left \x1b[K"
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


def test_shows_nothing_in_the_first_second(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.show_progress(2, "explaining") as bar:
        clock[0] = 0.9
        bar.advance()
    assert sys.stderr.getvalue() == ""


def test_shows_nothing_without_a_terminal(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.show_progress(2, "explaining") as bar:
        clock[0] = 9.0
        bar.advance()
    assert sys.stderr.getvalue() == ""


def test_is_wiped_after_an_error(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())

    def fail() -> None:
        with progress.show_progress(2, "explaining") as bar:
            clock[0] = 9.0
            bar.advance()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")])
def test_durations(seconds, text):
    assert progress.format_duration(seconds) == text
