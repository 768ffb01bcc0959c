"""Partition SHAP is the Owen value over halves of halves."""

from itertools import product

import pytest
import torch
from games import (
    PICTURES,
    TEXTS,
    WORTH,
    WORTH_OF_PICTURES,
    WORTH_OF_TEXTS,
    AddsPatches,
    AddsWords,
    Game,
    additive_game,
    random_game,
    shapley,
)
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods import kernel_shap, partition_shap
from whyformer.methods.partition_shap import halve_box

LOOSE = {"rtol": 1e-9, "atol": 1e-9}


def orders_of(tree):
    """All orders in which the members of every group stand side by side."""
    if isinstance(tree, int):
        return [(tree,)]
    one, other = map(orders_of, tree)
    return [x for a, b in product(one, other) for x in (a + b, b + a)]


TREES = {
    2: (0, 1),
    3: (0, (1, 2)),
    5: ((0, 1), (2, (3, 4))),
    6: ((0, (1, 2)), (3, (4, 5))),
}


@pytest.mark.parametrize("players", TREES)
def test_is_the_owen_value_by_definition(players):
    """The Shapley value over the orders in which groups stay together."""
    worth = random_game(players, seed=players)
    found = partition_shap(Game(worth, players), budget=1000).values[0]
    assert_close(found, shapley(worth, players, orders_of(TREES[players])), **LOOSE)


def test_of_a_picture_the_longer_side_is_halved():
    assert halve_box((0, 2, 0, 4)) == ((0, 2, 0, 2), (0, 2, 2, 4))
    assert halve_box((0, 3, 0, 2)) == ((0, 1, 0, 2), (1, 3, 0, 2))
    worth = random_game(4, seed=3)
    found = partition_shap(Game(worth, 4, grid=(2, 2))).values[0]
    assert_close(found, shapley(worth, 4, orders_of(((0, 2), (1, 3)))), **LOOSE)  # left and right, then up and down


def test_recovers_what_adds_up():
    for module, inputs, worth in (
        (AddsWords(WORTH), TEXTS, WORTH_OF_TEXTS),
        (AddsPatches(), PICTURES, WORTH_OF_PICTURES),
    ):
        assert_close(why.explain(module, inputs, "partition_shap", target=0).scores, worth, **LOOSE)


@pytest.mark.parametrize("budget", [2, 10, 11, 50])
def test_adds_up_at_any_budget_and_keeps_to_it(budget):
    worth = random_game(8)
    game = Game(worth, 8)
    found = partition_shap(game, budget=budget)
    total = worth(frozenset(range(8))) - worth(frozenset())
    assert abs(found.values.sum().item() - total) < 1e-9
    assert found.details["efficiency_error"].item() < 1e-9
    assert game.rows_asked <= budget + 1


def test_what_is_not_opened_is_shared():
    """Two answers: the halves {0, 1} and {2, 3} are worth 3 and 7, whoever in them it is."""
    game = Game(additive_game([1.0, 2.0, 3.0, 4.0]), 4)
    assert partition_shap(game, budget=2).values.tolist() == [[1.5, 1.5, 3.5, 3.5]]


def test_opens_what_changes_most():
    """With four answers more, of {0, 1} and {2, 3} the second is opened, before and after the first has joined."""
    game = Game(additive_game([0.0, 1.0, 3.0, 5.0]), 4)
    assert partition_shap(game, budget=6).values.tolist() == [[0.5, 0.5, 3, 5]]


def test_two_players_have_one_order_of_halves():
    worth = random_game(2)
    assert_close(partition_shap(Game(worth, 2)).values, kernel_shap(Game(worth, 2)).values, **LOOSE)


def test_one_and_none():
    assert partition_shap(Game(additive_game([2.5]), 1)).values.tolist() == [[2.5]]
    assert partition_shap(Game(additive_game([]), 0)).values.shape == (1, 0)


def test_settings_are_checked():
    with pytest.raises(MethodError, match=r"budget must be a whole number >= .*, got 1"):
        partition_shap(Game(additive_game([1.0]), 1), budget=1)
    assert torch.equal(*(partition_shap(Game(random_game(5), 5)).values for _ in range(2)))


@pytest.mark.parametrize("units", ["superpixel", "word"])
def test_a_picture_has_no_other_units_than_patches(units):
    """They would have been ignored."""
    with pytest.raises(MethodError, match=f"units must be one of .*; got '{units}'"):
        why.explain(why.open(AddsPatches()), PICTURES, "partition_shap", units=units)
