"""What a claim rests on, by hand: games in which its value is a known function of the sources that are kept."""

from itertools import product

import numpy as np
import pytest

from whyformer._cite.dependence import Dependence, Effects, find_opposed, read_dependence
from whyformer._cite.design import fit_weights, list_ablations, make_units
from whyformer._cite.measuring import Ablations, measure_claim, measure_completely


def ablations_of(worth, count=6, rest=0):
    """The answer has one token; every source has ten tokens, and `rest` tokens always stay."""
    return Ablations(lambda sets: [np.array([float(worth(kept))]) for kept in sets], [10] * count, rest)


def quickly(worth, count=6, relevance=None, limit=14.0):
    ablations = ablations_of(worth, count)
    return measure_claim(ablations, [0], make_units(relevance or [0.0] * count), limit), ablations


def additive(*weights, base=0.0):
    return lambda kept: base + sum(weights[j] for j in kept)


GAMES = {
    "one": (additive(9, 0.5, 0.2, 0, 0, 0), Dependence("one", (0,))),
    "two of which each is enough": (lambda kept: 8.0 * bool(kept & {1, 4}), Dependence("any of", (1, 4))),
    "three of which each is enough": (lambda kept: 8.0 * bool(kept & {1, 3, 4}), Dependence("any of", (1, 3, 4))),
    "two that are needed": (lambda kept: 8.0 * (kept >= {0, 5}), Dependence("together", (0, 5))),
    "three that are needed": (lambda kept: 8.0 * (kept >= {0, 2, 5}), Dependence("together", (0, 2, 5))),
    "all a little": (additive(2, 2, 2, 2, 2, 2), Dependence("together", (0, 1, 2))),
    "too little": (additive(0.3, 0.2, 0.1, 0, 0, 0), Dependence("hardly any")),
    "less likely with one": (additive(-6, 0.1, 0, 0, 0, 0), Dependence("against", (0,))),
}


@pytest.mark.parametrize("game", GAMES)
def test_every_kind_is_found_in_few_runs_and_in_all_of_them(game):
    worth, expected = GAMES[game]
    quick, ablations = quickly(worth)
    assert quick.reading == expected and ablations.forwards <= 14
    assert measure_completely(ablations_of(worth), [0]).reading == expected


@pytest.mark.parametrize("three", [(0, 1, 3), (2, 3, 4)])
def test_three_of_which_each_is_enough_are_found_beside_tokens_that_always_stay(three):
    ablations = ablations_of(lambda kept: 8.0 * bool(kept & set(three)), rest=4)
    assert measure_claim(ablations, [0], make_units([0.0] * 6), 14).reading == Dependence("any of", three)


def test_one_that_weighs_most_but_is_not_enough_does_not_hide_the_three_that_are():
    worth = lambda kept: 8.0 * bool(kept & {0, 1, 4}) + 2.6 * (2 in kept)  # noqa: E731
    assert quickly(worth)[0].reading == Dependence("any of", (0, 1, 4))


def test_seven_that_count_alike_are_several_and_none_is_named():
    worth = additive(*[2.0] * 7)
    assert quickly(worth, 7)[0].reading == Dependence("several")


def test_the_margin_is_half_of_the_effect_whatever_its_size():
    for factor in (1, 30):
        worth = additive(6 * factor, 3 * factor, 0, 0, 0, 0)
        assert quickly(worth)[0].reading == Dependence("one", (0,))


def test_what_is_near_the_margin_is_borderline_and_shows_both_readings():
    """The first gives and takes .52 of the effect: enough at a half, too little at .55."""
    found = quickly(additive(5.2, 2.4, 2.4, 0, 0, 0))[0]
    assert found.reading == Dependence("one", (0,)) and found.is_borderline
    assert found.around == (Dependence("one", (0,)), Dependence("together", (0, 1)))
    assert not quickly(additive(9, 1, 0, 0, 0, 0))[0].is_borderline


def test_a_source_that_passes_one_of_the_checks_is_named_beside():
    """Alone, source 1 gives as much as source 0; without it nothing is missing."""
    worth = lambda kept: 8.0 if 0 in kept else 5.0 if 1 in kept else 0.0  # noqa: E731
    found = quickly(worth)[0]
    assert found.reading == Dependence("one", (0,)) or found.reading == Dependence("any of", (0, 1))
    worth = lambda kept: 8.0 if 0 in kept else 5.0 if kept == {1} else 0.0  # noqa: E731
    found = quickly(worth)[0]
    assert (found.reading, found.also) == (Dependence("one", (0,)), (1,))


def test_one_that_gives_and_one_that_takes_leave_a_small_effect_and_the_second_speaks_against():
    found = quickly(additive(4, -3.8, 0, 0, 0, 0))[0]
    assert found.reading == Dependence("hardly any") and found.against == (1,) and found.also == ()
    found = quickly(additive(9, -5, 0, 0, 0, 0))[0]
    assert found.reading == Dependence("one", (0,)) and found.against == (1,)


def test_all_tokens_are_known_from_the_runs_of_the_first_claim():
    """The second token rests on another source: its coded ablations cost nothing more."""
    asked = []

    def run(sets):
        asked.append(len(sets))
        return [np.array([9.0 * (0 in kept), 7.0 * (3 in kept)]) for kept in sets]

    ablations = Ablations(run, [10] * 6, 0)
    units = make_units([0.0] * 6)
    first = measure_claim(ablations, [0], units, 14)
    spent, runs = ablations.forwards, sum(asked)
    second = measure_claim(ablations, [1], units, spent + 4)
    assert (first.reading, second.reading) == (Dependence("one", (0,)), Dependence("one", (3,)))
    assert sum(asked) - runs <= 4 and ablations.forwards - spent <= 4


def test_the_limit_is_never_exceeded_and_what_it_cuts_off_is_told():
    worth = lambda kept: 8.0 * (kept >= {0, 2, 5})  # noqa: E731
    found, ablations = quickly(worth, limit=9.0)
    assert ablations.forwards <= 9 and found.is_cut and found.reading == Dependence("several")


def test_a_run_costs_the_tokens_that_it_reads():
    ablations = ablations_of(additive(1, 1, 1, 1), 4, rest=10)
    ablations.ask([frozenset({0}), frozenset({0, 1, 2, 3}), frozenset({0})])
    assert ablations.forwards == pytest.approx(20 / 50 + 1)


@pytest.mark.parametrize("deciding", [0, 7, 12, 19])
def test_of_many_sources_one_in_a_group_is_found_by_opening_it(deciding):
    """Relevance points to others."""
    relevance = [float(j % 5 == 1) for j in range(20)]
    found, ablations = quickly(lambda kept: 9.0 * (deciding in kept), 20, relevance, limit=22)
    assert found.reading == Dependence("one", (deciding,)) and ablations.forwards <= 22


def test_two_of_many_in_different_groups_are_found():
    found, _ = quickly(lambda kept: 9.0 * (kept >= {3, 17}), 20, [float(j == 3) for j in range(20)], limit=22)
    assert found.reading == Dependence("together", (3, 17))


# --- the design -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 9))
def test_the_design_is_balanced_and_tells_units_from_pairs_of_others(count):
    kept = list_ablations(make_units([0.0] * count))
    assert len(kept) == len(set(kept)) == min(2**count, 16)
    assert frozenset() in kept and frozenset(range(count)) in kept
    signs = np.array([[1 if j in one else -1 for j in range(count)] for one in kept])
    assert not signs.sum(0).any()
    for a, b, c in product(range(count), repeat=3):
        if len({a, b, c}) == 3:
            assert (signs[:, a] * signs[:, b] * signs[:, c]).sum() == 0  # no unit is confounded with two others


def test_many_sources_are_five_alone_and_three_groups():
    units = make_units([float(-j) for j in range(12)])
    assert units[:5] == [frozenset([j]) for j in range(5)] and sorted(map(len, units[5:])) == [2, 2, 3]
    assert frozenset().union(*units) == frozenset(range(12))


def test_the_weights_of_an_additive_claim_are_found():
    weights = [3.0, -1.0, 0.5, 2.0, 0.0, 4.0, 1.0, -2.0]
    units = make_units([0.0] * 8)
    values = {kept: additive(*weights, base=-3.0)(kept) for kept in list_ablations(units)}
    assert fit_weights(units, values) == pytest.approx(weights)


def test_the_order_of_the_sources_does_not_matter():
    """Of the complete measurement, which tries all of them."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        table = {frozenset(np.flatnonzero(row)): generator.normal(3 * sum(row)) for row in product([0, 1], repeat=4)}
        effects = Effects(table.__getitem__, frozenset(range(4)))
        if effects.total < 1:
            continue
        pairs = lambda reading: reading.sources if reading.how == "one" else reading.how  # noqa: E731
        forth = read_dependence(effects.turn(), [0, 1, 2, 3], 0.5, 4, 3)
        back = read_dependence(effects.turn(), [3, 2, 1, 0], 0.5, 4, 3)
        assert pairs(forth) == pairs(back)
        assert find_opposed(effects, [0, 1, 2, 3]) == find_opposed(effects, [3, 2, 1, 0])
