"""The check by a loud token sees what it is for: scores at other tokens than those they belong to."""

from types import SimpleNamespace

import pytest
from families import token_checks
from families.cases import ModelClass, build_case
from families.outcome import Outcome, explain_case

import whyformer as why

ROBERTA = ModelClass("seq_cls", "roberta", "RobertaForSequenceClassification")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("moved", "word"), [(0, "ok"), (1, "WRONG")])
def test_scores_moved_by_one_token_are_wrong(moved, word, monkeypatch):
    explain = token_checks.explain_by_default
    move = lambda *given: SimpleNamespace(scores=explain(*given).scores.roll(moved, -1))  # noqa: E731
    monkeypatch.setattr(token_checks, "explain_by_default", move)
    case, outcome = build_case(ROBERTA), Outcome({"loud": "n/a"})
    left_out = explain_case(why.open(case.module), case.inputs, "leave_one_out", case.target)
    token_checks.check_loud_token(outcome, case, left_out)
    assert outcome.words["loud"] == word, outcome.reasons
