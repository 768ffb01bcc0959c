"""Does a published order hold here: pairs by hand, against scipy, and against a jackknife written as a loop."""

import numpy as np
import pytest
import scipy.stats
import torch

from whyformer._judge.order import PairOrder, compare_pairs
from whyformer.metrics.segmentation import combine_accuracy
from whyformer_papers.published_order import describe_orders, rank_pairs


def compare_orders(published, values, better, combine=None):
    """Every pair of methods that the paper's numbers rank."""
    return compare_pairs(rank_pairs(published, better), values, better, combine)


def test_a_clear_order_holds_and_the_other_way_round_is_reversed():
    values = {"good": np.array([0.9, 0.8] * 6), "bad": np.array([0.1, 0.2] * 6)}
    (pair,) = compare_orders({"good": 2.0, "bad": 1.0}, values, "higher")
    assert (pair.better, pair.worse, pair.verdict) == ("good", "bad", "holds")
    assert pair.difference == pytest.approx(0.7)
    (pair,) = compare_orders({"good": 2.0, "bad": 1.0}, values, "lower")  # lower is better, there and here
    assert (pair.better, pair.worse, pair.verdict) == ("bad", "good", "holds")
    (pair,) = compare_orders({"good": 1.0, "bad": 2.0}, values, "higher")  # the paper has bad in front
    assert (pair.better, pair.worse, pair.verdict) == ("bad", "good", "reversed")
    assert pair.difference == pytest.approx(-0.7)


def test_a_difference_that_changes_sign_is_undecided():
    values = {"a": np.array([1.0, 0.0] * 6), "b": np.array([0.0, 1.0] * 6)}
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, values, "higher")
    assert pair.verdict == "undecided" and pair.low < 0 < pair.high


def test_ties_and_methods_without_values_are_left_out():
    values = {"a": np.ones(3), "b": np.zeros(3), "c": np.full(3, np.nan)}
    assert compare_orders({"a": 1.0, "b": 1.0, "c": 2.0}, values, "higher") == []
    assert compare_orders({"a": 1.0}, values, "higher") == []


def test_examples_that_both_methods_have_count():
    """A third method without values takes no example from the pair."""
    values = {"a": np.array([1.0, 1.0, np.nan, 1.0]), "b": np.array([0.0, np.nan, 9.0, 0.0]), "c": np.full(4, np.nan)}
    (pair,) = compare_orders({"a": 2.0, "b": 1.0, "c": 0.0}, values, "higher")
    assert pair.difference == 1.0 and (pair.count, pair.total) == (2, 4)
    assert "on 2 of 4 examples, those for which both methods are defined" in describe_orders([pair])


@pytest.mark.parametrize("count", [2, 3, 9])
def test_below_ten_examples_there_is_no_interval_and_no_verdict(count):
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, {"a": np.full(count, 5.0), "b": np.zeros(count)}, "higher")
    assert pair.verdict == "undecided" and np.isnan([pair.low, pair.high]).all() and pair.difference == 5.0
    assert describe_orders([pair]).endswith("to decide one, at least 10 examples are needed")


def test_the_interval_of_a_mean_is_that_of_a_paired_t_test():
    generator = np.random.default_rng(3)
    values = {name: generator.uniform(1, 2, 12) for name in "ab"}
    (pair,) = compare_orders({"a": 2.0, "b": 1.0}, values, "higher")
    expected = scipy.stats.ttest_rel(values["a"], values["b"]).confidence_interval(0.95)
    assert (pair.low, pair.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_the_interval_of_a_figure_of_the_whole_data_set_is_that_of_the_jackknife():
    """By a loop: the spread of the statistic without each example, times (n - 1) / sqrt n."""
    generator = np.random.default_rng(3)
    values = {name: generator.uniform(1, 2, (12, 2)) for name in "ab"}
    (pair,) = compare_orders(
        {"a": 2.0, "b": 1.0}, values, "higher", lambda parts: combine_accuracy(torch.from_numpy(parts))
    )

    def ratio(rows):
        one, other = (values[name][rows].sum(0) for name in "ab")
        return one[0] / one[1] - other[0] / other[1]

    left_out = [ratio([row for row in range(12) if row != out]) for out in range(12)]
    spread = (11 / 12 * ((np.array(left_out) - np.mean(left_out)) ** 2).sum()) ** 0.5
    assert pair.high - pair.low == pytest.approx(2 * scipy.stats.t.ppf(0.975, 11) * spread, rel=1e-6)
    assert pair.difference == pytest.approx(ratio(list(range(12))))


def test_undecided_pairs_say_how_many_examples_would_decide():
    """An interval four times as wide as the difference needs sixteen times the examples."""
    pair = PairOrder("a", "b", 1.0, -3.0, 5.0, 40, 40)
    assert pair.verdict == "undecided" and pair.needed == 640
    assert "about 640 examples would decide a and b" in describe_orders([pair])


def test_the_sentence_begins_with_the_reversed_pairs():
    pairs = [
        PairOrder("a", "b", 1, 0.5, 2, 40, 40),
        PairOrder("a", "c", -1, -2, -0.5, 40, 40),
        PairOrder("b", "c", 0, -1, 1, 40, 40),
    ]
    assert describe_orders(pairs) == (
        "of the 3 published pairs 1 reversed (c over a), 1 holds, 1 undecided, on 40 examples"
    )
    many = [PairOrder("a", f"m{i}", -1, -2, -0.5, 40, 40) for i in range(6)]
    assert "m3 over a and 2 more)" in describe_orders(many)
