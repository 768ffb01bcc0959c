"""SaCo by hand."""

import pytest
import torch
from fake_probe import FakeProbe, picture, sigmoid, text

from whyformer.errors import MetricError
from whyformer.metrics import saco
from whyformer.metrics.saco import faithfulness_coefficient


def test_coefficient_by_hand():
    """Salience 5, 3, 0; changes 2, 4, 1. Pairs: (5, 3) wrong -2, (5, 0) right +5, (3, 0) right +3: 6 of 10."""
    salience, change = torch.tensor([5.0, 3.0, 0.0]), torch.tensor([2.0, 4.0, 1.0])
    assert faithfulness_coefficient(salience, change) == pytest.approx(0.6, abs=1e-12)


def test_saco_by_hand():
    """Groups of two tokens: (3, 2), (1, 0), (-1, -2) with effects that make the changes 5 in, 1, -3: in order, 1."""
    effects = [[3.0, 2.0, 1.0, 0.0, -1.0, -2.0]]
    probe = FakeProbe(effects)
    found = saco(text(effects), probe, groups=3)
    change = [sigmoid(3) - sigmoid(3 - out) for out in (5, 1, -3)]
    torch.testing.assert_close(found.curve, torch.tensor([change], dtype=torch.float64), rtol=0, atol=1e-12)
    assert found.value.tolist() == [1.0]
    assert saco(text([[-x for x in effects[0]]]), probe, groups=3).value.tolist() == [-1.0]
    assert probe.asked == [(3, None)] * 2


def test_groups_are_of_pixels_filled_with_the_mean():
    effects = [[4.0, 3.0, 2.0, 1.0]]
    probe = FakeProbe(effects, grid=(2, 2), side=4)
    assert saco(picture(effects, 2, 2), probe, groups=4).value.item() == pytest.approx(1.0)
    assert probe.asked == [(4, "mean")]


def test_a_flat_map_is_undefined_and_few_units_make_few_groups():
    assert saco(text([[1.0, 1.0, 1.0]]), FakeProbe([[1.0, 2.0, 3.0]])).value.isnan().all()
    assert saco(text([[1.0, 2.0, 3.0]]), FakeProbe([[1.0, 2.0, 3.0]]), groups=10).value.tolist() == [1.0]
    with pytest.raises(MetricError, match="groups must be a whole number >= 2"):
        saco(text([[1.0]]), FakeProbe([[1.0]]), groups=1)
