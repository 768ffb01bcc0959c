"""Evidence in images is removed by area, grown while the answer falls, and put into other images."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.effects import (
    ImageSet,
    ImageTest,
    blur,
    choose_best_evidence,
    choose_other_evidence,
    enlarge_mask,
    fill_from_neighbours,
    find_fixed,
    find_mask,
    grow_mask,
    list_extents,
    paste_pixels,
)
from whyformer._summary.patches import Detector


def make_rows(count):
    return [BulkRow(**image_row(str(i), i, np.arange(36.0), (6, 6))) for i in range(count)]


class BrightCentre:
    """A model that says the class is there as far as the four patches in the middle are bright; asked like a probe."""

    def replace_inputs(self, pixels, of):
        probability = pixels[:, 0, 8:16, 8:16].mean((1, 2))
        logits = torch.stack([probability, 1 - probability], 1)
        return type("Answers", (), {"probability": probability, "logits": logits})()


def make_test(mark):
    """Images of 6 x 6 patches of 4 x 4 pixels that are bright in the middle, of which `mark` matches these."""
    pixels = torch.zeros(8, 3, 24, 24)
    pixels[:, :, 8:16, 8:16] = 1.0
    inside, others = (
        ImageSet(make_rows(8), one, np.zeros((8, 36, 2, 1))) for one in (pixels, torch.zeros(8, 3, 24, 24))
    )
    masks = np.zeros((8, 6, 6), bool)
    for place in mark:
        masks[(slice(None), *place)] = True
    return ImageTest(inside, others, BrightCentre(), masks, 0)


NOTHING = np.zeros((6, 6), bool)


def test_what_the_answer_rests_on_is_removed_whole_and_given_to_others():
    test = make_test([(2, 2), (2, 3), (3, 2), (3, 3)])
    hidden, _, pasted = test.choose_extent(list_extents(test.masks, NOTHING))
    assert hidden.masks.sum() == pasted.masks.sum() == 8 * 4, "nothing is gained by growing"
    assert float(test.ask(test.remove(test.masks, "another image"))[0].max()) < 1e-6
    effect, told, rises = test.insert()
    assert told.before == pytest.approx(0) and told.after == pytest.approx(1) and rises == pytest.approx(1)
    assert effect.difference > 0.5 and effect.p < 0.05


def test_hiding_grows_until_the_answer_stops_falling():
    test = make_test([(2, 2)])
    hidden, _, _ = test.choose_extent(list_extents(test.masks, NOTHING))
    assert hidden.masks.sum() == 8 * 9, "the other three patches are beside the one that was matched"


def test_what_is_fixed_in_the_image_is_hidden_with_what_matched():
    test, fixed = make_test([(0, 0)]), NOTHING.copy()
    fixed[2:4, 2:4] = True
    hidden, _, _ = test.choose_extent(list_extents(test.masks, fixed))
    assert (hidden.masks == test.masks | fixed).all()


def test_fixed_is_where_images_with_the_evidence_are_alike_and_others_are_not():
    rng = np.random.default_rng(0)
    inside, others = (ImageSet(make_rows(8), torch.zeros(8, 3, 24, 24), rng.normal(size=(8, 36, 2, 64))) for _ in "ab")
    inside.states[:, [0, 7], 1] *= 0.1
    inside.states[:, 20, 0] *= 0.1  # late, where the model may have understood the same of different things
    assert np.flatnonzero(find_fixed(inside, others)).tolist() == [0, 7]


def test_the_best_evidence_is_where_relevance_is_dense():
    scores = np.zeros((6, 6))
    scores[0, 0], scores[3:5, 3:5] = 2.0, 1.0  # one patch alone, and four together
    rows = [BulkRow(**image_row("a", 0, scores.ravel(), (6, 6)))]
    assert np.argwhere(choose_best_evidence(rows, 4, (6, 6))[0]).tolist() == [[3, 3], [3, 4], [4, 3], [4, 4]]


def test_a_place_that_the_answer_does_not_rest_on_has_no_effect():
    effect, told, _ = make_test([(0, 0)]).insert()
    assert told.after == pytest.approx(0, abs=1e-3) and effect.difference == pytest.approx(0, abs=1e-3)


def test_the_detector_matches_at_least_its_best_patch():
    states = np.zeros((2, 36, 2, 1))
    states[0, [3, 4], 0] = 1.0
    states[1, 7, 1] = 0.2
    detector = Detector("cat", np.ones(2), 0.5, (0.9, 0.9), np.zeros(2), np.ones(2, bool), 1.0, np.ones(2))
    masks = find_mask(detector, ImageSet(make_rows(2), torch.zeros(2, 3, 24, 24), states))
    assert [np.flatnonzero(one).tolist() for one in masks] == [[3, 4], [7]]


def test_a_mask_grows_by_patches_but_not_over_most_of_the_image():
    masks = np.zeros((2, 6, 6), bool)
    masks[0, 2, 2] = masks[1, 1:5, 1:5] = True
    assert grow_mask(masks, 1).sum((1, 2)).tolist() == [9, 16]


def test_hidden_patches_are_filled_from_around():
    pixels = torch.full((1, 3, 12, 12), 5.0)
    pixels[:, :, 4:8, 4:8] = 99
    mask = np.zeros((1, 12, 12), bool)
    mask[0, 4:8, 4:8] = True
    filled = fill_from_neighbours(pixels, mask, 2.0)
    assert filled.numpy() == pytest.approx(5.0, abs=1e-3)
    assert (pixels[:, :, 4:8, 4:8] == 99).all(), "the images themselves stay"


def test_filling_by_the_slow_definition():
    """Pixel by pixel: a Gaussian over what is known, twice as wide where it reaches nothing."""
    rng = np.random.default_rng(4)
    pixels = torch.from_numpy(rng.normal(size=(2, 3, 24, 20)))
    masks = np.zeros((2, 24, 20), bool)
    masks[0, 2:22, 1:19], masks[1, 5:9, 3:7] = True, True
    filled = fill_from_neighbours(pixels, masks, 4.0).numpy()
    for image, mask, found in zip(pixels.numpy(), masks, filled, strict=True):
        left, spread, slow = mask.copy(), 2.0, image.copy()
        while left.any():
            weight = gaussian_filter((~mask).astype(float), spread, mode="constant")
            for channel in range(3):
                total = gaussian_filter(image[channel] * ~mask, spread, mode="constant")
                slow[channel][left & (weight > 1e-3)] = (total / np.maximum(weight, 1e-12))[left & (weight > 1e-3)]
            left &= weight <= 1e-3
            spread *= 2
        np.testing.assert_allclose(found, slow, atol=1e-9)


@pytest.mark.parametrize("spread", [0.5, 2.0, 30.0])
def test_blur_is_a_gaussian_filter(spread):
    image = np.random.default_rng(0).normal(size=(15, 11))
    np.testing.assert_allclose(blur(image, spread), gaussian_filter(image, spread, mode="constant"), atol=1e-12)
    np.testing.assert_allclose(
        blur(image, spread, mirror=True), gaussian_filter(image, spread, mode="nearest"), atol=1e-12
    )


def test_pasting_copies_the_pixels_and_keeps_what_is_far():
    donor, recipient = torch.ones(1, 3, 24, 24), torch.zeros(1, 3, 24, 24)
    mask = np.zeros((1, 24, 24), bool)
    mask[0, 4:8, 4:8] = True
    pasted = paste_pixels(donor, recipient, mask, 4.0)
    assert (pasted[0, :, 4:8, 4:8] == 1).all()
    assert float(pasted[0, :, 17:, 17:].abs().max()) < 1e-6
    assert 0 < float(pasted[0, 0, 5, 8]) < 1, "the edge is soft"


def test_other_evidence_does_not_touch_the_mark_and_is_as_large():
    masks = np.zeros((1, 6, 6), bool)
    masks[0, 5, 4:] = True  # the two patches with the highest scores
    assert np.flatnonzero(choose_other_evidence(make_rows(1), masks)).tolist() == [31, 32]
    assert enlarge_mask(masks, (12, 12)).sum() == 8
