"""Progress on standard error: one line for all that runs, only after a moment, and wiped at the end."""

import io
import threading
import time
from types import SimpleNamespace

import pytest

from whyformer._plain import progress
from whyformer._plain.progress import STATUS_LINE, Pace, ProgressBar, Wait, fit_line, show_activity, show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets: clock[0]. The line is rewritten when the test asks for it."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress.StatusLine, "_repeat", lambda line: None)
    monkeypatch.setenv("TERM", "xterm")
    return seconds


@pytest.fixture
def terminal(monkeypatch):
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    return made


def look(clock: list[float], at: float) -> str:
    """What the line says at this time."""
    clock[0] = at
    STATUS_LINE.show(at)
    return STATUS_LINE.line


def test_shows_the_count_and_the_time_left(clock, terminal):
    with show_progress(40, "explaining") as bar:
        for at in (10.0, 20.0, 30.0):
            clock[0] = at
            bar.advance(10)
        assert look(clock, 30.0) == "explaining: 30 of 40, 0:10 left"
        assert terminal.getvalue() == "\rexplaining: 30 of 40, 0:10 left\x1b[K"
        assert look(clock, 36.0) == "explaining: 30 of 40, 0:04 left"
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_start_up_is_no_work(clock):
    """60 s to start and one for each part: 38 are left after the second, not 20 times as many."""
    bar = ProgressBar(40, "explaining")
    clock[0] = 61.0
    bar.advance()
    assert bar.describe(61.0) == "explaining: 1 of 40, 1:01 so far"
    for _ in range(31):
        clock[0] += 1.0
        bar.advance()
    assert bar.describe(clock[0]) == "explaining: 32 of 40, 0:08 left"


@pytest.mark.parametrize("parallel", [8, None])
def test_workers_that_end_together_are_no_measure_of_the_rest(parallel):
    """Eight workers, a minute for each part: the first eight end within three seconds."""
    pace = Pace(0.0, parallel)
    for i in range(8):
        pace.count(1, 60.0 + 3 * i / 7)
    assert pace.rate is None
    pace.count(1, 120.0)
    assert pace.estimate_left(24, 120.0) == pytest.approx(180.0)


def test_no_estimate_from_parts_that_are_unlike_each_other(clock):
    bar = ProgressBar(40, "trying", is_uniform=False)
    for at in (10.0, 20.0, 30.0):
        clock[0] = at
        bar.advance()
    assert bar.describe(30.0) == "trying: 3 of 40, 0:30 so far"


def test_no_estimate_from_a_moment():
    pace = Pace(0.0)
    pace.count(1, 0.1)
    pace.count(1, 0.2)
    assert pace.estimate_left(10, 0.2) is None


def test_shows_nothing_in_the_first_moment(clock, terminal):
    with show_progress(2, "explaining") as bar:
        bar.advance()
        look(clock, 0.9 * progress.DELAY_SECONDS)
    assert terminal.getvalue() == ""


def test_shows_nothing_without_a_terminal(clock, monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=log))
    with show_progress(2, "explaining") as bar:
        bar.advance()
        look(clock, 90.0)
    assert log.getvalue() == ""


def test_a_dumb_terminal_gets_no_line_that_it_cannot_rewrite(clock, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with show_progress(2, "explaining"):
        look(clock, 90.0)
    assert terminal.getvalue() == ""


def test_progress_can_be_switched_off(clock, terminal, monkeypatch):
    monkeypatch.setenv("WHYFORMER_PROGRESS", "0")
    with show_progress(2, "explaining", is_logged=True):
        look(clock, 90.0)
    assert terminal.getvalue() == ""


def test_a_log_gets_a_line_now_and_then(clock, monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=log))
    with show_progress(40, "judging", is_logged=True) as bar, show_progress(9, "forwards"):
        for at in (10.0, 31.0, 40.0, 62.0):
            clock[0] = at
            bar.advance(8)
            look(clock, at)
    assert log.getvalue() == "judging: 16 of 40, 1:03 left\njudging: 32 of 40, 0:17 left\n"


def test_an_inner_bar_stands_beside_the_outer_one(clock, terminal):
    with show_progress(40, "judging"), show_progress(200, "forwards") as inner:
        inner.advance(64)
        assert look(clock, 5.0) == "judging: 0 of 40, 0:05 so far | forwards: 64 of 200, 0:05 so far"


def test_a_wait_is_shown_while_nothing_inside_it_is(clock, terminal):
    with show_activity(Wait("whyformer judge is running")):
        assert look(clock, 3.0) == "whyformer judge is running, 0:03"
        with show_progress(40, "judging"):
            assert look(clock, 3.1) == "whyformer judge is running, 0:03"
            assert look(clock, 9.0) == "judging: 0 of 40, 0:06 so far"
        assert look(clock, 9.0) == "whyformer judge is running, 0:09"


def test_a_line_is_never_wider_than_the_terminal():
    assert fit_line(["a" * 30, "b"], 80) == "a" * 30 + " | b"
    assert fit_line(["a" * 60, "b" * 60], 80) == "a" * 60 + " | " + "b" * 13 + "..."


def test_is_wiped_after_an_error(clock, terminal):
    def fail() -> None:
        with show_progress(2, "explaining"):
            look(clock, 9.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert terminal.getvalue().endswith("\r\x1b[K") and not STATUS_LINE.activities


def test_makes_room_for_other_output(clock, terminal):
    with show_progress(2, "explaining"):
        look(clock, 9.0)
        with STATUS_LINE.make_room():
            print("note", file=terminal)
        look(clock, 9.0)
    line = "\rexplaining: 0 of 2, 0:09 so far\x1b[K"
    assert terminal.getvalue() == f"{line}\r\x1b[Knote\n{line}\r\x1b[K"


def test_leaves_the_terminal_to_who_types(clock, terminal):
    with show_activity(Wait("waiting")):
        look(clock, 9.0)
        with progress.hide_status_line():
            assert look(clock, 10.0) == ""
        assert look(clock, 11.0) == "waiting, 0:11"


def test_a_closed_stream_is_no_reason_to_stop(clock, terminal):
    with show_progress(2, "explaining", is_logged=True):
        terminal.close()
        look(clock, 90.0)


def test_other_threads_do_not_touch_the_line(clock, terminal):
    thread = threading.Thread(target=lambda: STATUS_LINE.begin(Wait("elsewhere")))
    thread.start()
    thread.join()
    assert not STATUS_LINE.activities


def test_a_long_step_is_not_silent_and_no_thread_stays(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    with show_activity(Wait("opening a model")):
        deadline = time.monotonic() + 10
        while "opening a model, 0:00" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "opening a model, 0:00" in terminal.getvalue()
    while STATUS_LINE._ticker is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert STATUS_LINE._ticker is None


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")])
def test_durations(seconds, text):
    assert progress.format_duration(seconds) == text


# --- notebooks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cell(clock, monkeypatch):
    """The outputs of a notebook by their id, as a front end shows them."""
    shown = {}

    def publish(content, transient, update):
        assert update == (transient["display_id"] in shown)
        shown[transient["display_id"]] = content

    shell = SimpleNamespace(execution_count=1, display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    monkeypatch.setattr(STATUS_LINE, "cell", "")
    shown["shell"] = shell
    return shown


def test_a_notebook_has_a_bar_and_then_one_line_for_the_cell(clock, cell):
    with show_activity(Wait("opening a <model>")):
        look(clock, 3.0)
    with show_progress(40, "judging") as bar:
        bar.advance(10)
        look(clock, 9.0)
        (output,) = [content for name, content in cell.items() if name != "shell"]
        assert '<progress value="10" max="40">' in output["text/html"] and output["text/plain"].startswith(
            "judging: 10"
        )
        bar.advance(30)
    (output,) = [content for name, content in cell.items() if name != "shell"]
    assert output["text/plain"] == "judging: 40 of 40, 0:06"
    cell["shell"].execution_count = 2
    with show_activity(Wait("opening a <model>")):
        look(clock, 20.0)
    *_, output = cell.values()
    assert len(cell) == 3 and "opening a &lt;model&gt;" in output["text/html"]


def test_a_quick_cell_of_a_notebook_shows_no_progress(clock, cell):
    with show_progress(2, "explaining") as bar:
        look(clock, 0.1)
        bar.advance(2)
    assert [*cell] == ["shell"]
