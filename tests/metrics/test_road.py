"""ROAD by hand: pixels filled in from their neighbours."""

import numpy as np
import pytest
import torch
from fake_probe import FakeProbe, picture, sigmoid, text

from whyformer.errors import InputError
from whyformer.metrics import road
from whyformer.metrics.road import impute_pixels


def test_one_pixel_is_the_weighted_mean_of_its_neighbours():
    """Direct neighbours weigh 1/6, diagonal ones 1/12."""
    one = np.arange(9.0).reshape(3, 3, 1)
    one[1, 1] = 100
    kept = np.ones((3, 3), bool)
    kept[1, 1] = False
    filled = impute_pixels(one, kept)
    assert filled[1, 1, 0] == pytest.approx((1 + 3 + 5 + 7) / 6 + (0 + 2 + 6 + 8) / 12, abs=1e-12)
    assert (filled[kept] == one[kept]).all()


def test_a_corner_has_three_neighbours_and_their_weights_sum_to_one():
    one = np.array([[9.0, 1.0], [2.0, 4.0]])[..., None]
    filled = impute_pixels(one, np.array([[False, True], [True, True]]))
    assert filled[0, 0, 0] == pytest.approx((1 / 6 + 2 / 6 + 4 / 12) / (5 / 12), abs=1e-12)


def test_two_missing_pixels_are_solved_together():
    """A row of four with the middle two missing: x = (a + y) / 2, y = (x + b) / 2, so thirds between the ends."""
    filled = impute_pixels(np.array([[3.0, 0.0, 0.0, 6.0]])[..., None], np.array([[True, False, False, True]]))
    np.testing.assert_allclose(filled[0, :, 0], [3, 4, 5, 6], atol=1e-12)


def test_nothing_kept_is_the_mean_and_everything_kept_the_picture():
    one = np.arange(12.0).reshape(2, 2, 3)
    assert (impute_pixels(one, np.ones((2, 2), bool)) == one).all()
    assert (impute_pixels(one, np.zeros((2, 2), bool)) == one.mean((0, 1))).all()


def test_road_by_hand():
    """A row of three pixels (1, 1, 4), each its own patch, effects 1, 1, 1 and logit 6. Without the last (highest) it
    becomes (1, 1, 1): logit 3. Without the first (lowest) nothing changes."""
    probe = FakeProbe([[1.0, 1.0, 1.0]], grid=(1, 3))
    probe.encoded.inputs["pixel_values"][0, 0, 0] = torch.tensor([1.0, 1.0, 4.0])
    found = road(picture([[0.0, 1.0, 2.0]], 1, 3), probe, fractions=(0.34,), noise=0.0)
    torch.testing.assert_close(
        found.curve, torch.tensor([[sigmoid(3), sigmoid(6)]], dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert found.value.item() == pytest.approx(sigmoid(6) - sigmoid(3), abs=1e-12)
    inverted = road(picture([[2.0, 1.0, 0.0]], 1, 3), probe, fractions=(0.34,), noise=0.0)
    assert inverted.value.item() == pytest.approx(-found.value.item(), abs=1e-12)


def test_noise_is_on_removed_pixels_alone_and_always_the_same():
    probe = FakeProbe([[1.0, 1.0, 1.0]], grid=(1, 3))
    probe.encoded.inputs["pixel_values"][0, 0, 0] = torch.tensor([1.0, 1.0, 4.0])
    seen = []
    plain = probe.replace_inputs
    probe.replace_inputs = lambda tensors, of: (seen.append(tensors), plain(tensors, of))[1]
    for _ in range(2):
        road(picture([[0.0, 1.0, 2.0]], 1, 3), probe, fractions=(0.34,), noise=0.5)
    assert torch.equal(seen[0], seen[1])
    assert seen[0][0, 0, 0, :2].tolist() == [1.0, 1.0] and seen[0][0, 0, 0, 2] != 1.0


def test_a_text_has_no_neighbours_to_fill_in_from():
    with pytest.raises(InputError, match="the input is a text"):
        road(text([[1.0, 2.0]]), FakeProbe([[1.0, 2.0]]))
