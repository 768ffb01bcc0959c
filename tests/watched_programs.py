"""Watches recorded programs: what became of each attempt to use one."""

from collections.abc import Callable

import pytest

from whyformer._engine.capture.capture import Declined
from whyformer._engine.program.replay import ProgramRunner


def watch_programs(monkeypatch: pytest.MonkeyPatch, is_counted: Callable[[], bool] = lambda: True) -> list[str]:
    """A list that grows by "replayed" or "ran" with each run, as far as it is counted."""
    outcomes: list[str] = []
    accepts, run = ProgramRunner.accepts, ProgramRunner.run

    def note(outcome):
        if is_counted():
            outcomes.append(outcome)

    def watch_refusal(self, request):
        reason = accepts(self, request)
        if reason is not None:
            note("ran")
        return reason

    def watch_run(self, request):
        try:
            capture = run(self, request)
        except Declined:
            note("ran")
            raise
        note("replayed" if capture.engine.name == "program" else "ran")
        return capture

    monkeypatch.setattr(ProgramRunner, "accepts", watch_refusal)
    monkeypatch.setattr(ProgramRunner, "run", watch_run)
    return outcomes
