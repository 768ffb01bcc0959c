"""Infidelity and faithfulness correlation by hand, on sets that cover all pairs."""

import pytest
from fake_probe import FakeProbe, text

from whyformer.errors import MetricError
from whyformer.metrics import faithfulness_correlation, infidelity
from whyformer.metrics._removal import find_removable_units
from whyformer.metrics.infidelity import draw_random_sets, measure_sums_and_changes

EFFECTS = [[3.0, 1.0, -2.0, 0.5, 0.0]]


def test_scores_in_units_of_the_logit_have_no_infidelity():
    e, probe = text(EFFECTS), FakeProbe(EFFECTS)
    assert infidelity(e, probe, scaled=False).value.item() == pytest.approx(0, abs=1e-12)
    assert faithfulness_correlation(e, probe).value.item() == pytest.approx(1, abs=1e-12)


def test_infidelity_by_hand():
    """Twice the effects: the error of each set is its own change, squared. Scaled, the factor 1/2 makes it 0. A map of
    ones on sets of two is 2 everywhere."""
    probe = FakeProbe(EFFECTS)
    twice = text([[2 * x for x in EFFECTS[0]]])
    _, happened = measure_sums_and_changes(twice, probe, 64, 0.4, None, 0)
    assert infidelity(twice, probe, fraction=0.4, scaled=False).value.item() == pytest.approx(
        float((happened**2).mean()), abs=1e-12
    )
    assert infidelity(twice, probe, fraction=0.4).value.item() == pytest.approx(0, abs=1e-12)
    ones = infidelity(text([[1.0] * 5]), probe, fraction=0.4, scaled=False).value.item()
    assert ones == pytest.approx(float(((2 - happened) ** 2).mean()), abs=1e-12)


def test_a_map_of_zeros_gets_one_and_so_does_one_that_points_the_wrong_way():
    probe = FakeProbe(EFFECTS)
    assert infidelity(text([[0.0] * 5]), probe).value.tolist() == [1.0]
    assert infidelity(text([[-x for x in EFFECTS[0]]]), probe).value.tolist() == [1.0]


def test_random_sets_are_real_units_of_one_size_drawn_for_each_example():
    probe = FakeProbe(EFFECTS * 2, fingerprints=(5, 6))
    gone = draw_random_sets(find_removable_units(text(EFFECTS * 2), probe), probe, 30, 0.4, seed=0)
    assert (gone.sum(-1) == 2).all()
    assert not (gone & ~probe.real[:, None]).any()
    assert (gone[0] != gone[1]).any()
    assert gone.any(1)[probe.real].all()  # every unit is drawn now and then


def test_undefined_where_nothing_happens():
    e, still = text(EFFECTS), FakeProbe([[0.0] * 5])
    assert infidelity(e, still).value.isnan().all()
    assert faithfulness_correlation(e, still).value.isnan().all()
    assert faithfulness_correlation(text([[1.0] * 5]), FakeProbe(EFFECTS)).value.isnan().all()


def test_samples_and_fraction_are_checked():
    with pytest.raises(MetricError, match="samples must be a whole number >= 2"):
        infidelity(text(EFFECTS), FakeProbe(EFFECTS), samples=1)
    with pytest.raises(MetricError, match=r"fraction must be a number in \(0, 1\]"):
        infidelity(text(EFFECTS), FakeProbe(EFFECTS), fraction=0.0)
