"""Progress of a bulk run: rate and time left, shown although the rows are written by another thread."""

import os
import sys
from io import StringIO

import whyformer as why
from whyformer._bulk import fresh_process
from whyformer._bulk.job import BulkProgress
from whyformer._plain import progress
from whyformer._plain.progress import STATUS_LINE


def advance_at(monkeypatch, times, steps, *, total=1000, done_before=0) -> str:
    """What is said at the last of these times (seconds), when `steps` items are done at each."""
    clock = iter([0.0, *times])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    bar = BulkProgress(total, done_before)
    for _ in times:
        bar.advance(steps)
    return bar.describe(times[-1])


def test_the_rate_and_the_time_left(monkeypatch):
    said = advance_at(monkeypatch, [10.0, 20.0, 30.0], 100)
    assert said == "bulk: 300 of 1,000 items, 10 per second, 1:10 left"


def test_what_was_done_before_does_not_count_for_the_rate(monkeypatch):
    said = advance_at(monkeypatch, [25.0, 50.0], 100, done_before=500)
    assert said == "bulk: 700 of 1,000 items, 4 per second, 1:15 left"


def test_no_rate_before_one_was_measured(monkeypatch):
    assert advance_at(monkeypatch, [25.0], 100) == "bulk: 100 of 1,000 items, 0:25 so far"


def test_a_run_is_shown_on_a_terminal(tmp_path, monkeypatch):
    """The writer advances it in a thread of its own, where a bar used to show nothing."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(progress.StatusLine, "_repeat", lambda line: None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    advance = BulkProgress.advance

    def advance_and_look(bar, count):
        advance(bar, count)
        STATUS_LINE.show(1e9)

    monkeypatch.setattr(BulkProgress, "advance", advance_and_look)
    texts = ["a good film", "a bad film", "a dull film"]
    why.bulk("demo/sentiment", texts, "rollout", out=tmp_path / "run", workers=1, shard=1, batch_size=1)
    assert "\rbulk: 2 of 3 items, " in sys.stderr.getvalue() and sys.stderr.getvalue().endswith("\r\x1b[K")


def test_worker_processes_leave_the_line_to_the_process_that_started_them(monkeypatch):
    """Their own bars, such as those of leave-one-out, would overwrite it."""
    started = []
    monkeypatch.setattr(fresh_process.subprocess, "Popen", lambda *_, **options: started.append(options["env"]))
    _, connections = fresh_process.start_process("whyformer._bulk.worker_process", "main")
    for connection in connections:
        connection.close()
    monkeypatch.setattr(sys, "stderr", StringIO())
    monkeypatch.setenv("WHYFORMER_PROGRESS", started[0]["WHYFORMER_PROGRESS"])
    with progress.show_progress(10, "forwards", is_logged=True):
        assert not STATUS_LINE.activities


def test_ctrl_c_while_a_process_imports_its_program_is_left_to_the_caller(tmp_path, monkeypatch, capfd):
    """As when `whyformer serve` is stopped in its first seconds: no traceback, and the program goes on."""
    (tmp_path / "slow_program.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(descriptor): os.write(descriptor, b'done')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    process, (connection,) = fresh_process.start_process("slow_program", "main")
    assert os.read(connection.fileno(), 4) == b"done" and process.wait(30) == 0
    connection.close()
    assert capfd.readouterr().err == ""
