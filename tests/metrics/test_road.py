"""ROAD by hand: pixels filled in from their neighbours."""

import pytest
import torch
from fake_probe import FakeProbe, picture, sigmoid, text

from whyformer.errors import InputError
from whyformer.metrics import road
from whyformer.metrics._imputation import impute_by_multigrid, impute_images, prolong, restrict


def impute(image, kept):
    return impute_images(torch.tensor(image), torch.tensor(kept)[None], exactly=True)[0]


def test_one_pixel_is_the_weighted_mean_of_its_neighbours():
    """Direct neighbours weigh 1/6, diagonal ones 1/12."""
    one = torch.arange(9.0, dtype=torch.float64).reshape(1, 3, 3)
    one[0, 1, 1] = 100
    kept = torch.ones(3, 3, dtype=torch.bool)
    kept[1, 1] = False
    filled = impute_images(one, kept[None], exactly=True)[0]
    assert filled[0, 1, 1].item() == pytest.approx((1 + 3 + 5 + 7) / 6 + (0 + 2 + 6 + 8) / 12, abs=1e-12)
    assert torch.equal(filled[:, kept], one[:, kept])


def test_a_corner_has_three_neighbours_and_their_weights_sum_to_one():
    filled = impute([[[9.0, 1.0], [2.0, 4.0]]], [[False, True], [True, True]])
    assert filled[0, 0, 0].item() == pytest.approx((1 / 6 + 2 / 6 + 4 / 12) / (5 / 12), abs=1e-6)


def test_two_missing_pixels_are_solved_together():
    """A row of four with the middle two missing: x = (a + y) / 2, y = (x + b) / 2, so thirds between the ends."""
    filled = impute([[[3.0, 0.0, 0.0, 6.0]]], [[True, False, False, True]])
    torch.testing.assert_close(filled, torch.tensor([[[3.0, 4.0, 5.0, 6.0]]]))


def test_nothing_kept_is_the_mean_and_everything_kept_the_picture():
    one = torch.arange(12.0).reshape(3, 2, 2)
    kept = torch.tensor([True, False])[:, None, None].expand(2, 2, 2)
    whole, nothing = impute_images(one, kept, exactly=False)
    assert torch.equal(whole, one)
    assert torch.equal(nothing, one.mean((1, 2), keepdim=True).expand_as(one))


@pytest.mark.parametrize(("height", "width", "patch"), [(96, 96, 16), (70, 98, 14), (61, 90, 1)])
def test_multigrid_solves_the_same_equations_as_elimination(height, width, patch):
    """Patches of any size and single pixels, few and nearly all removed, an image whose sides cannot be halved."""
    torch.manual_seed(0)
    image = torch.nn.functional.avg_pool2d(torch.randn(3, height + 4, width + 4, dtype=torch.float64), 5, 1) * 40 + 7
    order = torch.rand(-(-height // patch), -(-width // patch)).repeat_interleave(patch, 0).repeat_interleave(patch, 1)
    kept = torch.stack([order[:height, :width] > removed for removed in (0.3, 0.6, 0.9)])
    found, exact = impute_by_multigrid(image, kept), impute_images(image, kept, exactly=True)
    assert float((found - exact).abs().max() / image.std()) < 1e-3
    assert torch.equal(found.double()[:, :, kept[0]][0], image.float().double()[:, kept[0]])


def test_transfers_between_grids_are_transposes():
    torch.manual_seed(0)
    coarse, fine = torch.randn(2, 1, 6, 8, dtype=torch.float64), torch.randn(2, 1, 12, 16, dtype=torch.float64)
    torch.testing.assert_close((prolong(coarse) * fine).sum(), (coarse * restrict(fine)).sum())
    assert torch.equal(prolong(torch.ones_like(coarse)), torch.ones_like(fine))


@pytest.mark.parametrize(("colours", "steps"), [(1, 3), (3, 12), (20, 2)])
def test_many_variants_and_colours_are_those_one_by_one(colours, steps):
    """More than are solved together, in any order of how much they remove, and more colours than that."""
    torch.manual_seed(1)
    image = torch.randn(colours, 24, 40).cumsum(-1)
    kept = torch.rand(24, 40) > torch.rand(steps)[:, None, None].clamp(0.1, 0.9)
    together = impute_by_multigrid(image, kept)
    for step in range(steps):
        exact = impute_images(image.double(), kept[step : step + 1], exactly=True)[0]
        assert float((together[step] - exact).abs().max() / image.std()) < 1e-3


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
