"""What an answer rests on, by hand: games in which its log-odds are a known function of the sources."""

import math

import numpy as np
import pytest
import torch
from games import Game, additive_game

from whyformer._cite.ablations import Ablations
from whyformer._cite.estimate import CODES, LONGEST, code_ablations, code_blocks, estimate_weights
from whyformer._cite.verification import find_evidence, find_rival_basis
from whyformer.methods._players import Players


def ablations_of(worth, sources):
    """Every token of the game is a source."""
    return Ablations(Game(worth, sources), Players(torch.arange(sources), sources, (1, sources)))


def search(worth, relevance, *, without=None, blocks=3, checks=1):
    """Relevance without the first source: the same without it, unless given."""
    relevance = np.array(relevance, dtype=float)
    ablations = ablations_of(worth, len(relevance))

    def explain_without(first):
        return np.where(np.arange(len(relevance)) == first, 0.0, relevance if without is None else np.array(without))

    return find_evidence(ablations, relevance, explain_without, blocks, checks), ablations


def test_one_source_decides():
    """log-odds = -4 + 9 a + 0.2 b: a takes 9 with it, the blocks of the others at most 0.2."""
    found, ablations = search(additive_game([9.0, 0.2, 0, 0, 0, 0], base=-4.0), [5, 0.3, 0.2, 0.1, -0.1, 0])
    assert (found.basis, found.how, found.against) == ((0,), "one", ())
    assert found.drop == pytest.approx(9) and found.margin == pytest.approx(2.6) and found.control == pytest.approx(0.2)
    assert found.scores[0] == pytest.approx(9) and np.abs(found.scores[1:]).sum() == pytest.approx(4.5)
    assert ablations.probe.rows_asked == 5 + 2 * CODES  # the first, three blocks, one check; the code


def test_two_sources_that_say_the_same_are_left_out_together():
    """Log-odds of 8 with either, -4 with none: neither is needed alone."""
    found, _ = search(lambda there: 8.0 if there & {0, 3} else -4.0, [5, 0.1, 0, 4, 0.2, 0])
    assert (found.basis, found.how) == ((0, 3), "either")
    assert found.drop == pytest.approx(12) and found.scores[0] == found.scores[3] >= 6
    assert np.abs(np.delete(found.scores, [0, 3])).sum() <= found.scores[0] / 2 + 1e-9


def test_three_that_say_the_same_are_found_by_a_thorough_search():
    worth = lambda there: 8.0 if there & {0, 3, 4} else -4.0  # noqa: E731
    found, _ = search(worth, [5, 0.1, 0, 4, 3, 0], blocks=5, checks=8)
    assert (found.basis, found.how) == ((0, 3, 4), "either")


def test_three_that_are_alike_without_the_first_are_left_out_in_one_check():
    worth = lambda there: 8.0 if there & {0, 3, 4} else -4.0  # noqa: E731
    found, _ = search(worth, [5, 0.1, 0, 0.4, 0.3, 0], without=[0, 0.1, 0, 4, 3, 0])
    assert (found.basis, found.how) == ((0, 3, 4), "either")


def test_both_steps_of_a_chain_are_named():
    """Log-odds of 3 with both; without the first step the model guesses (0.5), without the second it is lost (-12)."""
    worth = lambda there: -12.0 if 0 not in there else 3.0 if 2 in there else 0.5  # noqa: E731
    found, _ = search(worth, [5, 0.1, 0.5, 0, 0.2, 0])
    assert (found.basis, found.how, found.margin) == ((0, 2), "together", pytest.approx(1.5))
    sure, _ = search(lambda there: worth(there) + 20, [5, 0.1, 0.5, 0, 0.2, 0])  # 2.5 of 23 is not half of it
    assert (sure.basis, sure.how) == ((0,), "one")


def test_what_another_answer_rests_on():
    """It is unlikely without the first source, or without all that contain it; or it rests on none."""
    one, both = (lambda there: 6.0 if 1 in there else -2.0), (lambda there: 6.0 if there & {1, 3} else -2.0)
    relevance = np.array([0.1, 5.0, -1.0, 0.5])
    assert find_rival_basis(ablations_of(one, 4), relevance, [1, 3]) == (1,)
    assert find_rival_basis(ablations_of(both, 4), relevance, [1, 2, 3]) == (1, 3)
    assert find_rival_basis(ablations_of(lambda there: 6.0, 4), relevance, [1, 3]) == ()


def test_two_sources_that_are_needed_together():
    """Log-odds of 8 with both, -4 otherwise; the second one is found in its block, and left out alone."""
    found, _ = search(lambda there: 8.0 if {0, 2} <= there else -4.0, [5, 0.1, 3, 0, 0.2, 0])
    assert (found.basis, found.how) == ((0, 2), "together")
    # source 2 is kept in 3 of the 5 ablations with source 0, which takes 3/5 of 12; source 2 takes half of 12
    assert found.scores[[0, 2]].tolist() == pytest.approx([7.2, 0.7 * 6])


def test_a_source_that_contradicts():
    """The answer is unlikely because of b: log-odds = 1 + 2 a - 9 b."""
    found, _ = search(additive_game([2.0, -9.0, 0, 0, 0], base=1.0), [1, -5, 0.1, 0, 0.2])
    assert found.against == (1,) and found.scores[1] == pytest.approx(-9)


def test_nothing_decides():
    """A change that is no larger than without a control is no evidence."""
    found, _ = search(additive_game([0.3, 0.2, 0.3, 0.2], base=-7.0), [0.3, 0.2, 0.1, 0.1])
    assert (found.basis, found.how, found.against) == ((), "", ()) and found.margin == math.log(2)
    found, _ = search(additive_game([2.0, 3.0, 0.0, 0.0, 0.0], base=-1.0), [9.0, 0.1, 0.0, 0.0, 0.0], checks=0)
    assert found.margin == pytest.approx(3) and found.basis == ()


@pytest.mark.parametrize("factor", [1.0, 3.0, 30.0])
def test_a_sharper_model_gives_the_same_verdicts(factor):
    worth = additive_game([10 * factor, 1.2 * factor, 0.1 * factor, 0.0], base=-3.0 * factor)
    found, _ = search(worth, [5.0, 1.0, 0.5, 0.0])
    assert (found.basis, found.how) == ((0,), "one")


def test_the_order_of_the_sources_does_not_matter():
    weights, relevance = [9.0, 0.3, -0.2, 0.1, 0.4, 0.05, -0.4], [5.0, 0.31, -0.2, 0.12, 0.3, 0.07, -0.4]
    found, _ = search(additive_game(weights, base=-4.0), relevance)
    order = [3, 5, 0, 6, 1, 4, 2]
    moved, _ = search(additive_game([weights[i] for i in order], base=-4.0), [relevance[i] for i in order])
    assert moved.scores.tolist() == pytest.approx(found.scores[order].tolist())
    assert [order[i] for i in moved.basis] == list(found.basis)


def test_blocks_deal_the_others_by_magnitude():
    assert code_blocks(np.array([9.0, 0.1, -3.0, 2.0, 1.0]), 0, 2) == [[2, 4], [3, 1]]
    assert code_blocks(np.array([1.0, 2.0]), 1, 3) == [[0]]


def test_the_code_tells_sources_apart():
    """Every word comes with and without the first source, keeps about half of the others, and no word is twice."""
    relevance = np.arange(LONGEST + 1, 0, -1).astype(float)
    keep = code_ablations(relevance, 0)
    assert keep[0].all() and keep[1].sum() == LONGEST and not keep[1, 0]
    with_first, without = keep[2 : 2 + CODES], keep[2 + CODES :]
    assert with_first[:, 0].all() and not without[:, 0].any() and (with_first[:, 1:] == without[:, 1:]).all()
    assert len({tuple(word) for word in with_first[:, 1:8].T}) == 7
    assert all(5 <= row.sum() <= 8 for row in with_first[:, 1:])


def test_the_code_is_that_of_a_hadamard_matrix():
    """By hand: source 1 (rank 0) is left out of the odd words, source 2 of words 2 and 3, source 3 of words 1 and 2."""
    keep = code_ablations(np.array([9.0, 3.0, 2.0, 1.0]), 0)[2 : 2 + CODES, 1:]
    assert keep.T.tolist() == [[False, True, False, True], [True, False, False, True], [False, False, True, True]]


def weigh(worth, relevance):
    """The weights of a game from coded ablations."""
    relevance = np.array(relevance, dtype=float)
    keep = code_ablations(relevance, int(relevance.argmax()))
    log_odds = np.array([worth(frozenset(np.flatnonzero(row).tolist())) for row in keep])
    return estimate_weights(keep, log_odds, relevance, int(relevance.argmax()))


@pytest.mark.parametrize("partner", range(1, 8))
def test_the_code_finds_the_partner_of_the_first_source_without_its_relevance(partner):
    noise = [0.0, 0.05, -0.1, 0.02, 0.1, -0.03, 0.04, 0.0]
    found = weigh(
        lambda there: (8.0 if {0, partner} <= there else -4.0) + sum(noise[j] for j in there), [5, *[0.0] * 7]
    )
    assert set(found.argsort()[-2:].tolist()) == {0, partner} and found[0] >= found[partner] > 1


@pytest.mark.parametrize("true", range(1, 8))
def test_ablations_overrule_a_relevance_that_is_wrong(true):
    """Source 0 has all the relevance and no effect."""
    found = weigh(lambda there: 8.0 if true in there else -4.0, [5, *[0.1] * 7])
    assert found.argmax() == true and found[true] > 1 and np.abs(np.delete(found, true)).sum() <= found[true]


def test_weights_of_an_additive_model_are_found():
    """With all ablations, the order of the weak sources is that of their weights, whatever the relevance says."""
    true = np.array([10.0, 0.5, -0.4, 0.2, 0.0])
    keep = np.array([[bool(n >> j & 1) for j in range(5)] for n in range(32)])
    for prior in ([5, 0, 0, 0, 0], [5, -1, 1, 0.5, 0.2]):
        found = estimate_weights(keep, keep @ true - 3, np.array(prior, float), 0)
        assert found.argsort().tolist() == true.argsort().tolist()
        assert np.abs(found[1:]).sum() == pytest.approx(5) and found[0] == pytest.approx(10)


def test_without_ablations_of_the_others_the_relevance_is_the_order():
    relevance = np.array([5.0, 0.3, -0.2, 0.1])
    keep = code_ablations(relevance, 0)[:2]
    found = estimate_weights(keep, np.array([4.0, -4.0]), relevance, 0)
    assert (found[1:] / found[1] == pytest.approx(relevance[1:] / relevance[1])) and found[0] == 8


def test_an_ablation_is_asked_for_once_and_what_is_known_not_at_all():
    ablations = ablations_of(additive_game([1.0, 2.0], base=-5.0), 2)
    keep = torch.tensor([[True, True], [True, False], [True, False]])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.probe.rows_asked == 1  # all sources: known from the start
    ablations.learn([0], -3.5)
    assert ablations.ask_without([[0]]).tolist() == pytest.approx([1.5]) and ablations.probe.rows_asked == 1
    assert ablations.probe.fills == {"delete"}
