"""Watches recorded programs: what became of each attempt to use one."""

from collections.abc import Callable

import pytest

from whyformer._engine.program import replay


def watch_programs(monkeypatch: pytest.MonkeyPatch, is_counted: Callable[[], bool] = lambda: True) -> list[str]:
    """A list that grows by "replayed" or "ran" with each run, as far as it is counted."""
    outcomes: list[str] = []
    run = replay.Replayer.replay

    def watch(self):
        capture = run(self)
        if is_counted():
            outcomes.append("replayed" if capture is not None else "ran")
        return capture

    monkeypatch.setattr(replay.Replayer, "replay", watch)
    return outcomes
