"""The progress of an audit: costs are measured, the share never falls, 100 % is never shown."""

import pytest
from audit.known import idle, sentences

from whyformer._audit import audit, progress
from whyformer._audit.progress import GUESSED_SECONDS, WORK_LABELS, AuditProgress, show_audit_progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def test_the_time_left_by_hand(clock):
    """10 units took 20 s, so the other 30 take 60 s. The search has not begun: its guess is off by the same factor.
    What passed until the first report is start-up."""
    made = AuditProgress({"agreement": 50, "adversarial": 1000})
    clock.now += 500
    made.advance("agreement", 10)
    assert made.describe(clock.now).startswith("audit: 0 %, estimating the time left")
    clock.now += 20
    made.advance("agreement", 10)
    scale = 20 / (10 * GUESSED_SECONDS["agreement"])
    search = 1000 * GUESSED_SECONDS["adversarial"] * scale
    assert made.estimate_left(clock.now) == pytest.approx(60 + search)
    assert made.estimate_left(clock.now + 5) == pytest.approx(55 + search)
    clock.now += 40
    made.advance("agreement", 30)  # faster than before
    clock.now += 1
    made.advance("adversarial", 100)
    assert made.estimate_left(clock.now) == pytest.approx(9.0)
    assert made.describe(clock.now) == "audit: 98 %, 0:09 left, searching for other attention"


def test_the_share_never_falls_and_is_never_the_whole(clock):
    made = AuditProgress({"agreement": 2, "adversarial": 2})
    shares = []
    for kind, seconds in (("agreement", 1), ("agreement", 1), ("adversarial", 500), ("adversarial", 500)):
        clock.now += seconds
        made.advance(kind, 1)
        shares.append(made.measure_share(clock.now))
    assert shares == sorted(shares) and shares[-1] == 0.99
    clock.now += 10_000
    assert made.measure_share(clock.now) == 0.99


def test_work_that_need_not_be_done_is_not_counted(clock):
    made = AuditProgress({"adversarial": 110})
    made.advance("adversarial", 10)  # until here it started
    clock.now += 10
    made.advance("adversarial", 10)
    made.skip("adversarial", 80)
    assert made.estimate_left(clock.now) == pytest.approx(10)
    made.skip("adversarial", 80)
    assert made.estimate_left(clock.now) == 0


def test_every_kind_of_work_has_a_cost_and_a_name():
    assert set(GUESSED_SECONDS) == set(WORK_LABELS)


def test_an_audit_plans_exactly_what_it_does(monkeypatch):
    """So that the end of the plan is the end of the audit, resumed or not."""
    made = []

    def remember(planned):
        made.append(dict(planned))
        return show_audit_progress(planned)

    class Counted(AuditProgress):
        def __init__(self, planned):
            super().__init__(planned)
            made.append(self)

    monkeypatch.setattr("whyformer._audit.auditor.show_audit_progress", remember)
    monkeypatch.setattr(progress, "AuditProgress", Counted)
    data = [(words, i % 2) for i, words in enumerate(sentences(24))]
    audit(idle(), data, samples=3, search_limit=5, steps=2, checkpoints=[idle()], baseline=idle())
    planned, counted = made
    assert {kind: units for kind, units in planned.items() if units} == pytest.approx(
        {kind: units for kind, units in counted.done.items() if units}
    )
    assert set(counted.done) - {"adversary"} == {kind for kind, units in counted.done.items() if units}
