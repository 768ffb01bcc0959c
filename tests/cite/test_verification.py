"""What an answer rests on, by hand: games in which its log-odds are a known function of the sources."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from games import Game, additive_game

from whyformer._cite.ablations import Ablations
from whyformer._cite.estimate import COLUMNS, FIRST_COLUMN, WORDS, code_ablations, estimate_weights
from whyformer._cite.verification import find_evidence, find_rival_basis
from whyformer.methods._players import Players


def ablations_of(worth, sources):
    """Every token of the game is a source."""
    return Ablations(Game(worth, sources), Players(torch.arange(sources), sources, (1, sources)))


def search(worth, relevance, *, forwards=8.0, checks=0):
    relevance = np.array(relevance, dtype=float)
    ablations = ablations_of(worth, len(relevance))
    return find_evidence(ablations, relevance, forwards, checks=checks), ablations


def test_one_source_decides():
    """log-odds = -4 + 9 a + 0.2 b: a takes 9 with it, b hardly anything. An ablation costs what it reads."""
    found, ablations = search(additive_game([9.0, 0.2, 0, 0, 0, 0], base=-4.0), [5, 0.3, 0.2, 0.1, -0.1, 0])
    assert (found.basis, found.how, found.against) == ((0,), "one", ())
    assert found.drops == {(0,): pytest.approx(9, abs=0.1)}
    assert found.drop == pytest.approx(9.1) and found.margin == pytest.approx(2.6)  # b is in half of the ablations
    assert found.scores.argsort()[-2:].tolist() == [1, 0] and np.abs(found.scores[2:]).max() < found.scores[1] / 5
    read = sum(sum(row) for row in ablations.known) - 6  # the whole prompt was known
    assert ablations.forwards == pytest.approx(read / 6) and 6 < ablations.forwards <= 8


def test_two_sources_that_say_the_same_are_found_while_the_first_is_missing():
    """Log-odds of 8 with either, -4 with none: neither is needed alone."""
    found, _ = search(lambda there: 8.0 if there & {0, 3} else -4.0, [5, 0.1, 0, 4, 0.2, 0])
    assert (found.basis, found.how) == ((0, 3), "either")
    assert found.drop == pytest.approx(12) and set(found.scores.argsort()[-2:].tolist()) == {0, 3}


def test_three_that_say_the_same_are_found_by_a_thorough_search():
    worth = lambda there: 8.0 if there & {0, 3, 4} else -4.0  # noqa: E731
    found, _ = search(worth, [5, 0.1, 0, 4, 3, 0], checks=4)
    assert (found.basis, found.how, found.drop) == ((0, 3, 4), "either", pytest.approx(12))


def test_a_thorough_search_names_no_source_that_is_not_needed():
    """The second by relevance says nothing; each of the first and the third is enough."""
    found, _ = search(lambda there: 8.0 if there & {0, 4} else -4.0, [5, 0.1, 0, 4, 3, 0], checks=4)
    assert (found.basis, found.how, found.drop) == ((0, 4), "either", pytest.approx(12))


def test_both_steps_of_a_chain_are_named():
    """Log-odds of 3 with both; without the first step the model guesses (0.5), without the second it is lost (-12)."""
    worth = lambda there: -12.0 if 0 not in there else 3.0 if 2 in there else 0.5  # noqa: E731
    for checks in (0, 4):
        found, _ = search(worth, [5, 0.1, 0.5, 0, 0.2, 0], checks=checks)
        assert (found.basis, found.how, found.margin) == ((0, 2), "together", pytest.approx(1.5))
    sure, _ = search(lambda there: worth(there) + 20, [5, 0.1, 0.5, 0, 0.2, 0])  # 2.5 of 23 is not half of it
    assert (sure.basis, sure.how) == ((0,), "one")


@pytest.mark.parametrize("partner", [1, 7, 14, 16, 17])
def test_sources_with_the_same_column_are_told_apart(partner):
    """Of 20 sources, 1 and 16 have the same column, and 1 and 14 the same where the first one is kept."""
    relevance = [5, *(0.5 - 0.02 * rank for rank in range(19))]
    found, ablations = search(lambda there: 8.0 if {0, partner} <= there else -4.0, relevance)
    named = (found.basis, found.how)
    assert named == ((0, partner), "together") or (partner > 14 and partner not in found.basis and len(found.basis) < 2)
    assert ablations.forwards <= 8


def test_the_first_step_of_a_chain_may_have_negative_relevance():
    """It is tried before sources with less relevance that share its column: 3 and 17 of 20 do."""
    worth = lambda there: -12.0 if 0 not in there else 6.0 if 3 in there else -3.0  # noqa: E731
    relevance = [5, *(0.2 - 0.01 * rank for rank in range(19))]
    relevance[3] = -2.0
    found, _ = search(worth, relevance, forwards=9.0)
    assert (found.basis, found.how) == ((0, 3), "together")


@pytest.mark.parametrize(("relevant", "about", "named"), [(4, False, True), (0.5, True, True), (0.5, False, False)])
def test_two_say_the_same_if_both_are_relevant_or_the_question_is_about_both(relevant, about, named):
    """A source without relevance that shares no word with the question states the same by chance."""
    relevance = np.array([5, 0.1, 0, relevant, 0.2, 0])
    asked = np.array([[True] * 6, [True, False, False, about, False, False]])
    ablations = ablations_of(lambda there: 8.0 if there & {0, 3} else -4.0, 6)
    found = find_evidence(ablations, relevance, 8.0, asked=asked)
    assert (found.basis == (0, 3)) == named and found.likely_basis[0] == 0


def test_of_sources_left_out_together_the_least_relevant_one_speaks_against():
    """Of 20 sources, 3 and 17 have the same column of the code; the answer is unlikely because of 17."""
    relevance = [5, *(0.5 - 0.02 * rank for rank in range(19))]
    keep = code_ablations(np.array(relevance), 0)
    alike = np.flatnonzero((keep == keep[:, 17:18]).all(0))
    assert len(alike) > 1 and 17 in alike
    relevance[17] = -0.14  # as large, so that its column stays
    found, _ = search(lambda there: -6.0 if 17 in there else 5.0, relevance)
    assert found.against == (17,)


def test_a_source_that_keeps_a_part_of_the_answer_is_not_enough():
    """Log-odds of 8 with source 0, 5 with source 2 alone, -6 with neither: 3 is more than a part of the margin of 4."""
    found, _ = search(lambda there: 8.0 if 0 in there else 5.0 if 2 in there else -6.0, [5, 0.1, 3, 0, 0.2, 0.1])
    assert "either" not in found.how and 2 not in found.basis


def test_the_second_step_of_a_chain_is_tried_on_the_whole_prompt():
    """Without source 2 the model guesses, and is right if two of three others are gone: the code hardly tells."""
    worth = lambda there: -12.0 if 0 not in there else 4.0 if 2 in there or len(there) < 4 else -3.0  # noqa: E731
    found, ablations = search(worth, [5, 0.1, 0.5, 0, 0.2, 0, 0.1, 0.3])
    assert (found.basis, found.how) == ((0, 2), "together")
    assert (True, True, False, True, True, True, True, True) in ablations.known


def test_what_another_answer_rests_on():
    """It is unlikely without the first source, or without all that contain it; or it rests on none."""
    one, both = (lambda there: 6.0 if 1 in there else -2.0), (lambda there: 6.0 if there & {1, 3} else -2.0)
    relevance = np.array([0.1, 5.0, -1.0, 0.5])
    assert find_rival_basis(ablations_of(one, 4), relevance, [1, 3]) == (1,)
    assert find_rival_basis(ablations_of(both, 4), relevance, [1, 2, 3]) == (1, 3)
    assert find_rival_basis(ablations_of(lambda there: 6.0, 4), relevance, [1, 3]) == ()


def test_two_sources_that_are_needed_together():
    """Log-odds of 8 with both, -4 otherwise."""
    found, _ = search(lambda there: 8.0 if {0, 2} <= there else -4.0, [5, 0.1, 3, 0, 0.2, 0])
    assert (found.basis, found.how) == ((0, 2), "together")
    assert set(found.scores.argsort()[-2:].tolist()) == {0, 2}


def test_a_source_that_contradicts():
    """The answer is unlikely because of b: log-odds = 1 + 2 a - 9 b."""
    for checks in (0, 4):
        found, _ = search(additive_game([2.0, -9.0, 0, 0, 0], base=1.0), [1, -5, 0.1, 0, 0.2], checks=checks)
        assert found.against == (1,) and found.scores.argmin() == 1


def test_nothing_decides():
    """A change below the margin is no evidence, nor one that every source has a part in."""
    for checks in (0, 3):
        found, _ = search(additive_game([0.03, 0.02, 0.03, 0.02], base=-7.0), [0.3, 0.2, 0.1, 0.1], checks=checks)
        assert (found.basis, found.how, found.against) == ((), "", ()) and found.margin == math.log(2)
    found, _ = search(additive_game([2.0] * 8, base=-8.0), [2.0] * 8)
    assert (found.basis, found.how) == ((), "")


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


@pytest.mark.parametrize("others", [1, 2, 3, 7, 14])
def test_the_code_tells_sources_apart(others):
    """With the whole, the columns of up to 15 sources are orthogonal; no word is asked for twice."""
    keep = code_ablations(np.arange(others + 1, 0, -1).astype(float), 0)
    assert len({tuple(row) for row in keep.tolist()}) == len(keep) and not keep.all(1).any()
    signs = 2.0 * np.vstack([np.ones(others + 1), keep]) - 1
    assert (signs.T @ signs == len(signs) * np.eye(others + 1)).all()
    assert len(signs) == min(2 ** (others + 1), 16)


def test_words_come_with_and_without_the_first_source():
    """Words k and k + 8 follow each other. The first source has a column of its own, among 50 too."""
    keep = code_ablations(np.array([1.0, 9, -3, 2.5, 2, 0, 0.5, 1.5]), 1)
    assert (keep[0:14:2, 1] != keep[1:14:2, 1]).all() and len(keep) == len(WORDS)
    assert FIRST_COLUMN not in COLUMNS and len(set(COLUMNS)) == 14
    keep = code_ablations(np.arange(50, 0, -1.0), 0)
    assert not (keep[:, 1:] == keep[:, :1]).all(0).any()


def test_no_source_among_eight_is_taken_for_two_others_together():
    """Whether two sources are both kept or both left out is independent of every third one."""
    signs = 2.0 * np.vstack([np.ones(8), code_ablations(np.arange(8, 0, -1.0), 0)]) - 1
    for i, j in combinations(range(8), 2):
        assert np.abs(np.delete((signs[:, i] * signs[:, j]) @ signs, [i, j])).max() == 0


def test_the_code_by_hand():
    """Columns 8, 1, 2 and 4: word 1 leaves out the source with column 1; word 9 that and the first one."""
    keep = code_ablations(np.array([9.0, 3.0, 2.0, 1.0]), 0)
    assert keep[:2].tolist() == [[True, False, True, True], [False, False, True, True]]


def weigh(worth, relevance):
    """The weights of a game from coded ablations and the whole."""
    relevance = np.array(relevance, dtype=float)
    first = int(relevance.argmax())
    keep = np.vstack([np.ones((1, len(relevance)), dtype=bool), code_ablations(relevance, first)])
    log_odds = np.array([worth(frozenset(np.flatnonzero(row).tolist())) for row in keep])
    return estimate_weights(keep, log_odds, relevance, first)


@pytest.mark.parametrize("partner", range(1, 8))
def test_the_code_finds_the_partner_of_the_first_source_with_hardly_any_relevance(partner):
    """Noise of 0.1 decides the order of most ablations, but no other source weighs more than the two that decide."""
    noise = [0.0, 0.05, -0.1, 0.02, 0.1, -0.03, 0.04, 0.0]
    worth = lambda there: (8.0 if {0, partner} <= there else -4.0) + sum(noise[j] for j in there)  # noqa: E731
    found, _ = search(worth, [5, *[0.1] * 7])
    assert (found.basis, found.how) == ((*sorted((0, partner)),), "together")
    assert found.scores[[0, partner]].min() >= np.abs(np.delete(found.scores, [0, partner])).max()


@pytest.mark.parametrize("true", range(1, 8))
def test_ablations_overrule_a_relevance_that_is_wrong(true):
    """Source 0 has all the relevance and no effect."""
    found = weigh(lambda there: 8.0 if true in there else -4.0, [5, *[0.1] * 7])
    assert found.argmax() == true and found[true] > 1 and np.abs(np.delete(found, true)).max() <= found[true] / 4
    verdict, _ = search(lambda there: 8.0 if true in there else -4.0, [5, *[0.1] * 7])
    assert (verdict.basis, verdict.how) == ((true,), "one")


def test_weights_of_an_additive_model_are_found():
    """With all ablations, the order of the weak sources is that of their weights, whatever the relevance says."""
    true = np.array([10.0, 0.5, -0.4, 0.2, 0.0])
    keep = np.array([[bool(n >> j & 1) for j in range(5)] for n in range(32)])
    for prior in ([5, 0, 0, 0, 0], [5, -1, 1, 0.5, 0.2]):
        found = estimate_weights(keep, keep @ true - 3, np.array(prior, float), 0)
        assert found.argsort().tolist() == true.argsort().tolist()


def test_where_ablations_tell_nothing_of_the_others_relevance_is_their_order():
    relevance = np.array([5.0, 0.3, -0.2, 0.1])
    keep = np.array([[True] * 4, [False, True, True, True]])
    found = estimate_weights(keep, np.array([4.0, -4.0]), relevance, 0)
    assert found.argmax() == 0 and found[1] > found[3] > found[2]  # they were never left out
    keep = np.vstack([keep, ~keep])
    equal = estimate_weights(keep, np.array([4.0, -4.0, -4.0, 4.0]), relevance, 0)
    assert equal.argmax() == 0 and equal[1] > equal[3] > equal[2]
    assert max(abs(equal[1:])) < 1e-6 * equal[0]  # an order, and no size


def test_two_regimes_count_alike():
    """With the first source the log-odds spread by 0.1, without it by 10: the order in both counts, not one of them."""

    def worth(there):
        kept = {1: 0.1, 2: -0.1, 3: 0.0} if 0 in there else {1: 10, 2: 0, 3: -10}
        return (20 if 0 in there else 0) + sum(kept[j] for j in there - {0})

    found = weigh(worth, [5, 0.0, 0.0, 0.0])
    assert found[1] > max(found[2], found[3]) and found[2] < 0 and found[3] < 0


def test_an_ablation_is_asked_for_once_and_what_is_known_not_at_all():
    ablations = ablations_of(additive_game([1.0, 2.0], base=-5.0), 2)
    keep = torch.tensor([[True, True], [True, False], [True, False]])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.ask(keep).tolist() == pytest.approx([-2, -4, -4])
    assert ablations.probe.rows_asked == 1  # all sources: known from the start
    ablations.learn([0], -3.5)
    assert ablations.ask_without([[0]]).tolist() == pytest.approx([1.5]) and ablations.probe.rows_asked == 1
    assert ablations.probe.fills == {"delete"}
