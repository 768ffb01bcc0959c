"""Localisation by hand: maps of four patches on masks of four pixels."""

import numpy as np
import pytest
import torch
from fake_probe import explanation, picture, text

from whyformer._plain.tokens import Grid
from whyformer.errors import InputError
from whyformer.metrics import mass_in_mask, pointing_game, rank_in_mask
from whyformer.metrics._maps import resize_map


def near(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12, equal_nan=True)


def test_mass_by_hand():
    """1 + 2 of 1 + 2 + 3 + 4 lie on the object; without the last pixel it is 3 of 6."""
    e = picture([[1.0, 2.0, 3.0, 4.0]] * 2, 2, 2)
    near(mass_in_mask(e, [[[1, 1], [0, 0]], [[1, 1], [0, -1]]]), [0.3, 0.5])


def test_negative_scores_are_no_mass():
    near(mass_in_mask(picture([[1.0, -9.0, 3.0, -1.0]], 2, 2), [[[1, 1], [0, 0]]]), [0.25])


def test_mass_is_undefined_without_an_object_or_positive_mass():
    e = picture([[1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, 0.0, 0.0]], 2, 2)
    assert mass_in_mask(e, [[[0, 0], [0, 0]], [[1, 1], [0, 0]]]).isnan().all()


def test_rank_by_hand():
    """The object has two pixels; of the two highest (4 and 3) one lies on it. Without the ignored 4, it is 3 and 2."""
    e = picture([[1.0, 2.0, 3.0, 4.0]] * 3, 2, 2)
    near(rank_in_mask(e, [[[0, 1], [0, 1]], [[0, 1], [1, -1]], [[0, 0], [0, 0]]]), [0.5, 1.0, float("nan")])


def test_equal_ranks_count_by_their_share():
    """One pixel above, and one of three equal ones to choose, of which one lies on the object: 1/3 of 2."""
    near(rank_in_mask(picture([[5.0, 1.0, 1.0, 1.0]], 2, 2), [[[0, 1], [1, 0]]]), [(0 + 2 / 3) / 2])
    near(rank_in_mask(picture([[5.0, 1.0, 1.0, 1.0]], 2, 2), [[[1, 1], [0, 0]]]), [(1 + 1 / 3) / 2])


def test_pointing_game_by_hand():
    e = picture([[1.0, 2.0, 3.0, 4.0]] * 4, 2, 2)
    masks = [[[0, 0], [0, 1]], [[1, 1], [1, 0]], [[0, 0], [1, -1]], [[0, 0], [0, 0]]]
    near(pointing_game(e, masks), [1.0, 0.0, 1.0, float("nan")])  # ignored: the highest of the others counts
    near(pointing_game(e, masks, tolerance=1)[:2], [1.0, 1.0])


def test_several_highest_pixels_count_by_their_share():
    near(pointing_game(picture([[7.0, 7.0, 7.0, 0.0]], 2, 2), [[[1, 0], [0, 0]]]), [1 / 3])


def test_patches_are_enlarged_to_the_mask():
    """Two patches, 1 and 0, to four pixels: 1, 3/4, 1/4, 0. The object is the first two: 7/8 of 2."""
    near(mass_in_mask(picture([[1.0, 0.0]], 1, 2), [[[1, 1, 0, 0]]]), [0.875])


def test_what_is_no_mask_is_refused():
    e = picture([[1.0] * 4], 2, 2)
    with pytest.raises(InputError, match="2 masks for 1 images"):
        mass_in_mask(e, [[[1, 1], [0, 0]]] * 2)
    with pytest.raises(InputError, match="with values"):
        mass_in_mask(e, [[[255, 1], [0, 0]]])
    with pytest.raises(InputError, match="height width"):
        mass_in_mask(e, [[1, 1, 0, 0]])
    with pytest.raises(InputError, match="A text has no map of pixels"):
        mass_in_mask(text([[1.0, 2.0]]), [[[1, 0]]])


def test_a_map_of_pixels_must_have_the_size_of_the_mask():
    e = picture([[1.0] * 4], 2, 2, pixels=torch.ones(1, 4, 4))
    with pytest.raises(InputError, match="The map has 4 x 4 pixels, but 2 x 2 are needed"):
        mass_in_mask(e, [[[1, 1], [0, 0]]])


def test_a_map_is_enlarged_over_the_pixels_its_patches_cover():
    """Two patches of 2 x 2 pixels in an image of 2 x 5: the fifth column is in no patch and copies its neighbour."""
    scores = torch.tensor([[0.0, 4.0]]).double()
    covering = explanation(scores, (Grid(1, 2, (2, 4)),))
    assert resize_map(covering, 0, (2, 5)).tolist() == [[0, 1, 3, 4, 4]] * 2


def test_mass_and_rank_against_numpy():
    """On random maps and masks with ignored pixels: sums and a sorted list, image by image."""
    rng = np.random.default_rng(3)
    maps = rng.standard_normal((6, 36))
    masks = [rng.choice([-1, 0, 1], size=(6, 6), p=[0.2, 0.5, 0.3]) for _ in range(6)]
    mass, rank = [], []
    for values, mask in zip(maps, masks, strict=True):
        truth = mask.flatten()
        kept = np.maximum(values, 0)
        mass.append(kept[truth == 1].sum() / kept[truth >= 0].sum())
        best = sorted((i for i in range(36) if truth[i] >= 0), key=lambda i: -values[i])[: (truth == 1).sum()]
        rank.append(np.mean(truth[best] == 1))
    e = picture(maps, 6, 6)
    np.testing.assert_allclose(mass_in_mask(e, masks).numpy(), mass, atol=1e-6)
    np.testing.assert_allclose(rank_in_mask(e, masks).numpy(), rank, atol=1e-6)
