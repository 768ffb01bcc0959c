"""Verdicts by hand: games in which the log-odds of the answer are a known function of the sources."""

import math

import pytest
import torch
from games import Game, additive_game

from whyformer._cite.ablations import Ablations
from whyformer._cite.verification import (
    choose_against,
    choose_controls,
    choose_top,
    describe_verification,
    verify_sources,
)
from whyformer.methods._players import Players

NAMES = [f"passage {n}" for n in range(1, 9)]


def ablations_of(worth, sources):
    """Every token of the game is a source."""
    return Ablations(Game(worth, sources), Players(torch.arange(sources), sources, (1, sources)))


def test_verdicts_by_hand():
    """log-odds = -20 + 6 a - 4 b + 0.5 c: a is supported, b contradicted, c not needed; d to f change nothing."""
    ablations = ablations_of(additive_game([6.0, -4.0, 0.5, 0.0, 0.0, 0.0], base=-20.0), 6)
    verified = verify_sources(ablations, torch.tensor([9.0, 5.0, 3.0, 0.1, 0.0, -0.2]), 3)
    assert verified.top == (0, 1, 2) and verified.controls == (4, 3, 5)
    assert [verified.drops[i] for i in range(6)] == pytest.approx([6, -4, 0.5, 0, 0, 0])
    assert [verified.judge(i) for i in range(4)] == ["supported", "contradicted", "not needed", None]
    assert verified.margin == math.log(2) and verified.together == pytest.approx(2.5)
    assert describe_verification(verified, NAMES) == []


def test_a_control_that_matters_raises_the_margin_and_is_named():
    """A drop of 2 is no evidence where leaving out something unimportant changes the answer by 3."""
    ablations = ablations_of(additive_game([2.0, 0.0, 3.0, 0.0], base=-20.0), 4)
    verified = verify_sources(ablations, torch.tensor([9.0, 8.0, 0.0, 0.1]), 2)
    assert verified.margin == pytest.approx(3) and verified.judge(0) == "not needed"
    (note,) = describe_verification(verified, NAMES)
    assert "Leaving out passage 3" in note and "-3.00" in note and "the scores miss it" in note


def test_two_sources_that_say_the_same_are_not_needed_alone():
    """Log-odds of -1 with either, -9 with none."""
    ablations = ablations_of(lambda there: -1.0 if there & {0, 1} else -9.0, 4)
    verified = verify_sources(ablations, torch.tensor([5.0, 5.0, 0.0, 0.0]), 2)
    assert [verified.judge(i) for i in (0, 1)] == ["not needed"] * 2
    assert verified.together == pytest.approx(8)
    (note,) = describe_verification(verified, NAMES)
    assert "passage 1, passage 2" in note and "8.00" in note and "any one of them may suffice" in note


def test_without_a_control_a_factor_of_two_decides():
    ablations = ablations_of(additive_game([0.7, 0.69], base=-5.0), 2)
    verified = verify_sources(ablations, torch.tensor([2.0, 1.0]), 5)
    assert verified.controls == () and [verified.judge(i) for i in (0, 1)] == ["supported", "not needed"]
    assert "so there are no controls" in describe_verification(verified, NAMES)[0]


def test_top_and_controls():
    scores = torch.tensor([1.0, -9.0, 3.0, 3.0, 0.5, -0.1, 0.2])
    assert choose_top(scores, 3) == (2, 3, 0)  # of equals, the first
    assert choose_controls(scores, (2, 3, 0), 3) == (5, 6, 4)  # nearest to 0: not the most negative
    assert choose_controls(scores, (2,), 1) == (5,)


def test_a_control_has_a_score_near_0_or_there_is_none():
    """Scores of -46 % and -77 % are no controls: they are verified."""
    for scores in ([0.5, 0.04, -0.46], [0.23, -0.77]):
        scores = torch.tensor(scores)
        (low,) = choose_against(scores, (0,))
        assert low == len(scores) - 1 and low not in choose_controls(scores, (0, low), 3)
    assert choose_controls(torch.tensor([0.23, -0.77]), (0, 1), 3) == ()
    assert choose_against(torch.tensor([3.0, 2.0, 1.0, -0.1]), (0,)) == ()
    assert choose_against(torch.zeros(3), (0,)) == () and choose_controls(torch.zeros(3), (0,), 1) == (1,)


def test_a_strongly_negative_source_is_verified():
    """Without the passage that says otherwise, the answer is likelier: contradicted."""
    ablations = ablations_of(additive_game([6.0, 0.0, 0.0, -5.0], base=-3.0), 4)
    verified = verify_sources(ablations, torch.tensor([5.0, 0.1, 0.0, -4.0]), 1)
    assert verified.against == (3,) and verified.judge(3) == "contradicted" and verified.judge(0) == "supported"
    assert verified.controls == (2,)


def test_a_fifth_of_the_drop_together_is_the_margin_of_a_sharp_model():
    """Three times the logits is three times every drop: what is small beside the whole is still no support."""
    for factor in (1, 3, 30):
        game = additive_game([10.0 * factor, 1.2 * factor, 0.1 * factor, 0.0], base=-3.0)
        verified = verify_sources(ablations_of(game, 4), torch.tensor([5.0, 1.0, 0.5, 0.0]), 3)
        assert verified.margin == pytest.approx(0.2 * 11.3 * factor)
        assert [verified.judge(i) for i in range(3)] == ["supported", "not needed", "not needed"]


def test_a_doubtful_answer_is_supported_by_nothing():
    ablations = ablations_of(additive_game([6.0, 0.0, -5.0, 0.0], base=-20.0), 4)
    verified = verify_sources(ablations, torch.tensor([5.0, 0.1, -4.0, 0.0]), 2, ["it is made up."])
    assert [verified.judge(i) for i in (0, 1, 2)] == ["caution", "not needed", "contradicted"]
    assert describe_verification(verified, NAMES) == ["Caution: it is made up."]


def test_an_ablation_is_asked_for_once():
    ablations = ablations_of(additive_game([1.0, 2.0], base=-5.0), 2)
    keep = torch.tensor([[True, True], [True, False], [True, False]])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.probe.rows_asked == 1  # all sources: known from the start
    assert ablations.probe.fills == {"delete"}
