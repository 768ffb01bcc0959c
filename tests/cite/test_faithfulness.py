"""The faithfulness of source scores: a perfect score, a wrong one, and chance, on games with a known answer."""

import math

import pytest
import torch
from games import Game, additive_game
from scipy.stats import spearmanr

from whyformer._cite.ablations import Ablations
from whyformer._cite.faithfulness import draw_questions, measure_faithfulness
from whyformer.methods._players import Players

WORTH = [4.0, -2.0, 1.0, 0.5, 0.0, 0.25]


def ablations_of(worth, sources=6):
    return Ablations(Game(worth, sources), Players(torch.arange(sources), sources, (1, sources)))


def test_scores_that_add_up_are_perfect_and_their_opposite_is_not():
    worth = torch.tensor(WORTH)
    for scores, wanted in ((worth, 1.0), (-worth, -1.0)):
        found = measure_faithfulness(ablations_of(additive_game(WORTH, base=-10.0)), scores, 24, 0, 7)
        assert found.lds == pytest.approx(wanted)
        assert -1 < found.chance[0] < 0 < found.chance[1] < 1
        assert (found.samples, found.seed) == (24, 0)


def test_the_score_by_definition():
    """Spearman of summed scores and the log-odds that the game gives, for an answer that is no sum."""
    worth = lambda there: -1.0 - 3.0 * (0 not in there) * (1 not in there) - 0.5 * len(there)  # noqa: E731
    scores = torch.tensor([2.0, 1.0, -0.25, 0.125, 0.0, 0.5], dtype=torch.double)
    found = measure_faithfulness(ablations_of(worth), scores, 20, 3, 7)
    keep, _ = draw_questions(6, 20, 3, 7)
    sums = [float(scores[row].sum()) for row in keep]
    actual = [worth(frozenset(row.nonzero()[:, 0].tolist())) for row in keep]
    assert found.lds == pytest.approx(spearmanr(sums, actual).statistic)


def test_drops_of_the_top_sources_by_hand():
    found = measure_faithfulness(ablations_of(additive_game(WORTH, base=-10.0)), torch.tensor(WORTH), 8, 0, 7)
    one, three = found.drops
    assert (one.size, three.size) == (1, 3)
    assert (one.drop, three.drop) == (pytest.approx(4), pytest.approx(5.5))
    _, sets = draw_questions(6, 8, 0, 7)
    for drop in found.drops:
        by_chance = [sum(WORTH[i] for i in some) for some in sets[drop.size]]
        assert drop.chance == pytest.approx(sum(by_chance) / len(by_chance))
        assert drop.interval[0] <= drop.chance <= drop.interval[1] and drop.draws == len(by_chance)


def test_is_undefined_where_nothing_changes_the_answer():
    found = measure_faithfulness(ablations_of(lambda there: -3.0), torch.tensor(WORTH), 8, 0, 7)
    assert math.isnan(found.lds) and all(math.isnan(bound) for bound in found.chance)


def test_follows_from_the_seed():
    game = additive_game(WORTH, base=-10.0)
    scores = torch.tensor([1.0, 0.0, 3.0, 0.0, 0.2, 0.1])
    first, again, other = (measure_faithfulness(ablations_of(game), scores, 16, seed, 7) for seed in (0, 0, 1))
    assert first == again and first.lds != other.lds


def test_two_sources_have_no_top_three():
    found = measure_faithfulness(ablations_of(additive_game([1.0, 2.0], -5.0), 2), torch.tensor([1.0, 2.0]), 8, 0, 7)
    assert [drop.size for drop in found.drops] == [1]
