"""Marks in images are grown to their full extent, hidden by what is around them, and put into other images."""

import numpy as np
import pytest
import torch
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.groups import StateGroup
from whyformer._summary.marks import (
    ImageSet,
    choose_other_evidence,
    fill_from_neighbours,
    find_constant_offsets,
    grow_mark,
    keep_connected,
    paste_patches,
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
    assert grown.mean() < 0.6


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
    mask = np.zeros((1, 6, 6), bool)
    mask[0, 2:4, 2:4] = True
    filled = fill_from_neighbours(pixels, mask)
    assert filled.numpy() == pytest.approx(5.0, abs=1e-3)
    assert (pixels[:, :, 4:8, 4:8] == 99).all(), "the images themselves stay"


def test_pasting_copies_the_patches_and_keeps_what_is_far():
    donor, recipient = torch.ones(1, 3, 24, 24), torch.zeros(1, 3, 24, 24)
    mask = np.zeros((1, 6, 6), bool)
    mask[0, 1, 1] = True
    pasted = paste_patches(donor, recipient, mask)
    assert (pasted[0, :, 4:8, 4:8] == 1).all()
    assert float(pasted[0, :, 16:, 16:].abs().max()) < 1e-6
    assert 0 < float(pasted[0, 0, 5, 8]) < 1, "the edge is soft"


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
