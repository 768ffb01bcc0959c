"""Does a published order hold here: pairs by hand, and against a bootstrap written as a loop."""

import numpy as np
import pytest
import torch

from whyformer._judge.order import PairOrder, compare_pairs
from whyformer._reproduce.published_order import describe_orders, rank_pairs
from whyformer.metrics.segmentation import combine_accuracy


def compare_orders(published, values, better, combine=None):
    """Every pair of methods that the paper's numbers rank."""
    return compare_pairs(rank_pairs(published, better), values, better, combine)


def test_a_clear_order_holds_and_the_other_way_round_is_reversed():
    values = {"good": np.array([0.9, 0.8, 0.9, 0.8]), "bad": np.array([0.1, 0.2, 0.1, 0.2])}
    (pair,) = compare_orders({"good": 2.0, "bad": 1.0}, values, "higher")
    assert (pair.better, pair.worse, pair.verdict) == ("good", "bad", "holds")
    assert pair.difference == pytest.approx(0.7)
    (pair,) = compare_orders({"good": 2.0, "bad": 1.0}, values, "lower")  # lower is better, there and here
    assert (pair.better, pair.worse, pair.verdict) == ("bad", "good", "holds")
    (pair,) = compare_orders({"good": 1.0, "bad": 2.0}, values, "higher")  # the paper has bad in front
    assert (pair.better, pair.worse, pair.verdict) == ("bad", "good", "reversed")
    assert pair.difference == pytest.approx(-0.7)


def test_a_difference_that_changes_sign_is_undecided():
    values = {"a": np.array([1.0, 0.0, 1.0, 0.0]), "b": np.array([0.0, 1.0, 0.0, 1.0])}
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, values, "higher")
    assert pair.verdict == "undecided" and pair.low < 0 < pair.high


def test_ties_and_methods_without_values_are_left_out():
    values = {"a": np.ones(3), "b": np.zeros(3), "c": np.full(3, np.nan)}
    assert compare_orders({"a": 1.0, "b": 1.0, "c": 2.0}, values, "higher") == []
    assert compare_orders({"a": 1.0}, values, "higher") == []


def test_only_examples_that_all_methods_have_count():
    values = {"a": np.array([1.0, 1.0, np.nan, 1.0]), "b": np.array([0.0, np.nan, 9.0, 0.0])}
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, values, "higher")
    assert pair.difference == 1.0 and pair.low == pair.high == 1.0


@pytest.mark.parametrize("combined", [False, True])
def test_intervals_equal_a_slow_paired_bootstrap(combined):
    generator = np.random.default_rng(3)
    shape = (9, 2) if combined else (9,)
    values = {name: generator.uniform(1, 2, shape) for name in "ab"}
    combine = (lambda parts: combine_accuracy(torch.from_numpy(parts))) if combined else None
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, values, "higher", combine)
    same, differences = np.random.default_rng(0), []
    for rows in same.integers(9, size=(2000, 9)):
        both = [values[name][rows] for name in "ab"]
        both = [v[:, 0].sum() / v[:, 1].sum() if combined else v.mean() for v in both]
        differences.append(both[0] - both[1])
    low, high = np.quantile(differences, [0.025, 0.975])
    assert (pair.low, pair.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_the_sentence_names_reversed_pairs():
    pairs = [PairOrder("a", "b", 1, 0.5, 2), PairOrder("a", "c", -1, -2, -0.5), PairOrder("b", "c", 0, -1, 1)]
    assert describe_orders(pairs) == "of the 3 published pairs 1 hold, 1 reversed (c over a), 1 undecided"
    many = [PairOrder("a", f"m{i}", -1, -2, -0.5) for i in range(6)]
    assert "m3 over a and 2 more)" in describe_orders(many)
