"""Marks in images are grown to their full extent, hidden by what is around them, and put into other images."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.groups import StateGroup
from whyformer._summary.marks import (
    ImageSet,
    blur,
    choose_other_evidence,
    enlarge_mask,
    fill_from_neighbours,
    find_constant_offsets,
    find_patches,
    grow_mark,
    keep_connected,
    move_mark,
    paste_pixels,
    sketch_mark,
)
from whyformer._summary.wording import describe_place

GROUP = StateGroup("cat", np.array([1.0, 0.0]), 0.9, (0.9, 0.8, 0.95), np.arange(3))


def make_images(count, places, seed=0):
    """[row column] of 6 x 6 patches: `places` [item] lists the patches that are the same in all items."""
    rng = np.random.default_rng(seed)
    early = rng.normal(size=(count, 6, 6, 4))
    late = np.tile(np.array([0.0, 1.0]), (count, 6, 6, 1))
    for item, patches in enumerate(places):
        for number, (down, across) in enumerate(patches):
            early[item, down, across] = number + 3
        late[item][patches[0]] = (1.0, 0.0)  # only the first patch matches
    rows = [BulkRow(**image_row(str(i), i, np.arange(36.0), (6, 6))) for i in range(count)]
    return ImageSet(rows, torch.zeros(count, 3, 12, 12), early, late)


def test_a_frame_is_grown_from_one_patch():
    frame = [(0, 0), *((r, c) for r in range(6) for c in range(6) if (r in (0, 5) or c in (0, 5)) and (r, c) != (0, 0))]
    grown = grow_mark(GROUP, make_images(12, [frame] * 12), make_images(12, []))
    assert all(grown[:, r, c].all() for r, c in frame)
    assert not grown[:, 2:4, 2:4].any()
    assert describe_place(grown.mean(0)) == "a border around the image"


def test_a_moving_mark_is_grown_by_its_offsets():
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 3, (16, 2))
    places = [[(r, c), (r, c + 1), (r, c + 2), (r + 1, c + 2)] for r, c in corners.tolist()]
    grown = grow_mark(GROUP, make_images(16, places), make_images(16, [], seed=1))
    assert all(grown[item, r, c] for item, patches in enumerate(places) for r, c in patches)
    assert grown.mean() < 0.5


def test_constant_offsets_by_hand():
    places = [[(1, 1), (1, 2)], [(3, 2), (3, 3)], [(4, 4), (4, 5)], [(0, 3), (0, 4)], [(2, 0), (2, 1)]]
    images = make_images(5, places)
    assert {(0, 0), (0, 1)} <= set(find_constant_offsets(images.early, np.array([one[0] for one in places]), 4.0))


def test_what_is_not_connected_is_not_part_of_the_mark():
    start, candidates = np.zeros((4, 4), bool), np.zeros((4, 4), bool)
    start[0, 0] = candidates[1, 1] = candidates[3, 3] = True
    assert keep_connected(candidates, start).sum() == 2


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


def test_a_mark_is_moved_and_resized_about_its_middle():
    pixels = torch.zeros(2, 1, 24, 24)
    masks = np.zeros((2, 24, 24), bool)
    masks[:, 4:8, 4:10] = True
    pixels[:, :, 4:8, 4:10] = 1.0
    moved, covered = move_mark(pixels, masks, np.array([[0.75, 0.5], [np.nan, np.nan]]), 1.0)
    assert np.argwhere(covered[0]).min(0).tolist() == [16, 9] and covered[0].sum() == 24
    assert (moved[0, 0].numpy()[covered[0]] == 1).all()
    assert (covered[1] == masks[1]).all(), "nan stays"
    larger, smaller = (move_mark(pixels, masks, np.full((2, 2), np.nan), size)[1][0] for size in (2.0, 0.5))
    assert larger.sum() == 96 and np.argwhere(larger).min(0).tolist() == [2, 1]
    assert smaller[4:8, 4:10].sum() == smaller.sum() and 3 <= smaller.sum() <= 8, "half as high and wide"


def test_patches_of_a_mask():
    masks = np.zeros((2, 12, 12), bool)
    masks[0, 0:2, 0:3] = True  # all of one patch, half of the next
    masks[1, 11, 11] = True  # a quarter of one
    assert [np.flatnonzero(one).tolist() for one in find_patches(masks, (6, 6))] == [[0, 1], [35]]
    assert (find_patches(enlarge_mask(np.eye(6, dtype=bool)[None], (12, 12)), (6, 6))[0] == np.eye(6)).all()


def test_other_evidence_is_outside_of_the_mark_and_as_large():
    rows = [BulkRow(**image_row("a", 0, np.arange(36.0), (6, 6)))]
    masks = np.zeros((1, 6, 6), bool)
    masks[0, 5, 4:] = True  # the two patches with the highest scores
    chosen = choose_other_evidence(rows, masks)
    assert np.flatnonzero(chosen).tolist() == [32, 33]


def test_a_mark_is_sketched_from_the_kept_patches():
    usual = np.zeros((6, 6), bool)
    usual[5, 5] = True
    mark = sketch_mark(GROUP, np.array([0, 20]), np.array([[1.0, 0.0], [0.0, 1.0]]), usual)
    assert np.flatnonzero(mark).tolist() == [0, 1, 6, 7, 35]
