"""Intervals and tests: by hand, against scipy, and their error rates on simulated data."""

import math

import numpy as np
import pytest
from scipy import stats

from whyformer._plain.statistics import Pair, adjust_p_values, bootstrap, paired_test, paired_tests


def test_the_mean_and_an_interval_around_it():
    mean, low, high = bootstrap([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert 1.0 <= low < 2.5 < high <= 4.0


def test_the_interval_by_hand():
    """Two examples, 0 and 1: the mean of a draw is 0, 1/2 or 1, each end with a quarter of the draws."""
    assert bootstrap([0.0, 1.0]) == (0.5, 0.0, 1.0)


def test_leaves_out_undefined_examples():
    assert bootstrap([1.0, float("nan"), 3.0]) == bootstrap([1.0, 3.0])
    assert all(math.isnan(number) for number in bootstrap([float("nan")]))
    assert all(math.isnan(number) for number in bootstrap([]))


def test_one_example_has_no_interval():
    mean, low, high = bootstrap([3.0])
    assert mean == 3.0 and math.isnan(low) and math.isnan(high)


def test_the_same_numbers_give_the_same_interval():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap(values, 7) == bootstrap(values, 7)
    assert bootstrap(values, 7) != bootstrap(values, 8)


def test_the_interval_agrees_with_scipy():
    values = np.random.default_rng(2).exponential(size=80)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=3).confidence_interval
    _, low, high = bootstrap(values)
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)


def test_the_interval_covers_the_true_mean_about_95_times_in_100():
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(200):
        _, low, high = bootstrap(generator.normal(5.0, 2.0, size=40))
        covered += low <= 5.0 <= high
    assert 178 <= covered <= 199


def test_a_statistic_of_the_whole_data_set_is_computed_from_parts():
    """Right and labelled pixels of three images: 3 of 4, 1 of 2, 4 of 4; together 8 of 10."""
    parts = [[3.0, 4.0], [1.0, 2.0], [4.0, 4.0]]
    value, low, high = bootstrap(parts, combine=lambda rows: rows[:, 0].sum() / rows[:, 1].sum())
    assert value == 0.8
    assert low == pytest.approx(0.5) and high == 1.0


def test_a_paired_test_by_hand():
    """Three pairs, the first always larger: of 8 swaps only all and none give so large a mean."""
    assert paired_test([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]) == 0.25


def test_equal_values_are_not_significantly_different():
    assert paired_test([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_test([1.0] * 30, [1.0] * 30) == 1.0


def test_values_that_differ_by_rounding_are_equal():
    """Two methods with the same maps: what the model answers to the same variants differs in the last digits."""
    values = np.random.default_rng(0).random(40)
    assert paired_test(values, values * (1 + 1e-7)) == 1.0
    assert paired_test(values, values * (1 + 1e-3)) < 0.001


def test_a_paired_test_agrees_with_scipy():
    generator = np.random.default_rng(5)
    a, b = generator.normal(0.25, 1, size=60), generator.normal(0, 1, size=60)
    theirs = stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis), permutation_type="samples", n_resamples=20_000, rng=6
    ).pvalue
    assert paired_test(a, b) == pytest.approx(theirs, abs=0.015)


def test_the_paired_test_keeps_its_false_alarm_rate():
    generator = np.random.default_rng(8)
    alarms = sum(paired_test(generator.normal(size=12), generator.normal(size=12)) < 0.05 for _ in range(300))
    assert 4 <= alarms <= 29


def test_finds_a_clear_difference_and_leaves_out_incomplete_pairs():
    a, b = np.arange(40.0), np.arange(40.0) + 1
    a[3] = float("nan")
    assert paired_test(a, b) < 0.001
    assert math.isnan(paired_test([float("nan")], [1.0]))


def test_lists_of_different_length_are_not_paired():
    with pytest.raises(ValueError, match="must have the same shape to be paired"):
        paired_test([1.0], [1.0, 2.0])


def test_a_paired_test_of_a_statistic_of_the_whole_data_set():
    """If each part is a single number, the statistic is the mean and the test is the plain one."""
    a, b = [[2.0], [3.0], [4.0]], [[1.0], [2.0], [3.0]]
    assert paired_test(a, b, combine=lambda rows: rows.mean()) == 0.25


def test_holm_by_hand():
    """0.01 * 3, then the larger of that and 0.02 * 2, then 0.5 * 1."""
    assert adjust_p_values([0.5, 0.01, 0.02]) == pytest.approx([0.5, 0.03, 0.04])
    assert adjust_p_values([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert adjust_p_values([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert adjust_p_values([]) == []


def test_holm_leaves_out_undefined_p_values():
    adjusted = adjust_p_values([0.01, float("nan"), 0.02])
    assert adjusted[0] == 0.02 and math.isnan(adjusted[1]) and adjusted[2] == 0.02


# --- several tests together -------------------------------------------------------------------------------------------


def test_one_test_of_several_is_the_paired_test():
    a, b = np.random.default_rng(0).normal(size=(2, 30))
    assert paired_tests([Pair(a, b)]) == [paired_test(a, b)]
    assert math.isnan(paired_tests([Pair(a, b), Pair(a * math.nan, b)])[1]) and paired_tests([]) == []


def test_equal_tests_need_no_correction_and_unrelated_ones_do():
    """The same test ten times has the p-value of one; ten unrelated ones about ten times as much."""
    generator = np.random.default_rng(1)
    a, b = generator.normal(0.35, size=40), np.zeros(40)
    single = paired_test(a, b)
    assert paired_tests([Pair(a, b)] * 10) == [single] * 10
    others = [Pair(generator.normal(size=40), b) for _ in range(9)]
    assert 4 * single < paired_tests([Pair(a, b), *others])[0] < 11 * single


def test_neither_the_scale_of_a_test_nor_huge_values_change_the_others():
    generator = np.random.default_rng(2)
    pairs = [Pair(*generator.normal(size=(2, 25))) for _ in range(3)]
    scaled = [pairs[0], Pair(pairs[1].first * 1e200, pairs[1].second * 1e200), Pair(pairs[2].first, pairs[2].second)]
    assert paired_tests(scaled) == paired_tests(pairs)


def test_a_combined_statistic_beside_means():
    """A mean computed by `combine` is tested as the mean; an undefined statistic is no difference."""
    a, b = np.random.default_rng(3).normal(0.3, size=(2, 12))
    mean = paired_tests([Pair(a, b), Pair(b, a)])
    assert paired_tests([Pair(a, b), Pair(b[:, None], a[:, None], lambda rows: float(rows.mean()))]) == mean
    assert paired_tests([Pair(a, b, lambda rows: math.nan)]) == [1.0]


def test_tests_together_keep_the_rate_of_any_false_alarm():
    generator = np.random.default_rng(4)
    alarms = sum(
        min(paired_tests([Pair(values, rival) for values in generator.normal(size=(20, 12))])) < 0.05
        for rival in generator.normal(size=(100, 12))
    )
    assert alarms <= 11  # more has a probability of 1 %
