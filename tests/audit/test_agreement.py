"""Agreement of two rankings, by hand and against scipy's definitions."""

import pytest

from whyformer._audit.checks.agreement import correlate_attention, measure_correlations


def test_by_hand():
    """1 2 3 4 against 1 2 4 3: five pairs in order, one not."""
    found = measure_correlations([1, 2, 3, 4], [1, 2, 4, 3], top=0.5)
    assert found["tau"] == pytest.approx(4 / 6)
    assert found["spearman"] == pytest.approx(0.8)
    assert found["pearson"] == pytest.approx(0.8)
    assert found["overlap"] == 1.0  # the two highest are the same two
    assert found["by_chance"] == 0.5


def test_ties_are_tau_b():
    """Pairs: 01 tied in a, 02 and 12 concordant: 2 / sqrt(2 * 3)."""
    assert measure_correlations([1, 1, 2], [1, 2, 3])["tau"] == pytest.approx(2 / 6**0.5)


@pytest.mark.parametrize("constant", [[0.25] * 4, [0.25, 0.25 + 1e-9, 0.25, 0.25]])
def test_constant_attention_has_no_ranking(constant):
    assert set(measure_correlations(constant, [1, 2, 3, 4]).values()) == {None}
    assert set(measure_correlations([1, 2, 3, 4], constant).values()) == {None}


def test_one_token_has_no_ranking():
    assert measure_correlations([1.0], [2.0])["tau"] is None


def test_every_measure_is_compared_and_the_yardstick_too():
    measures = {"gradient, attention held": [3, 2, 1], "leave-one-out, deleted": [1, 2, 3], "rollout": [1, 3, 2]}
    found = correlate_attention([1, 2, 3], measures)
    assert found["attention ~ gradient, attention held"]["tau"] == -1
    assert found["attention ~ leave-one-out, deleted"]["tau"] == 1
    assert found["gradient, attention held ~ leave-one-out, deleted"]["tau"] == -1
    assert len(found) == 4
