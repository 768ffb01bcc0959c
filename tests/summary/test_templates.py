"""Copies of the same pixels are found wherever they are; alike textures are not copies."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from summary.bulk_folder import image_row

from whyformer._runs.parts import BulkRow
from whyformer._summary.image_evidence import LEAST_LIMIT, LIMIT, lower_limit
from whyformer._summary.marks import grow_copies
from whyformer._summary.templates import cut_windows, find_templates, fit_windows, measure_chance, place_window

SIZE, GRID = 48, (6, 6)


def make_class(count, mark=None, *, seed=0):
    """Smooth noise, in the first half with the mark at a place of its own; the patch under its middle is relevant."""
    rng = np.random.default_rng(seed)
    images = np.repeat(np.repeat(rng.normal(size=(count, 3, 12, 12)), 4, 2), 4, 3)
    rows, corners = [], []
    for i in range(count):
        scores = rng.random(36)
        if mark is not None and i < count // 2:
            top, left = rng.integers(0, SIZE - np.array(mark.shape[1:]))
            images[i, :, top : top + mark.shape[1], left : left + mark.shape[2]] = mark
            middle = np.array([top + mark.shape[1] // 2, left + mark.shape[2] // 2]) // 8
            scores[middle[0] * 6 + middle[1]] = 9
            corners.append((top, left))
        rows.append(replace(BulkRow(**image_row(str(i), i, scores, GRID)), scores=scores))
    return rows, torch.from_numpy(images).half(), np.array(corners)


MARK = np.random.default_rng(7).normal(size=(3, 12, 16)) * 1.5


def test_the_best_fit_by_the_slow_definition():
    rng = np.random.default_rng(1)
    images, windows = torch.from_numpy(rng.normal(size=(3, 2, 7, 9))), torch.from_numpy(rng.normal(size=(2, 2, 3, 3)))
    found, corners = fit_windows(images, windows)
    for w, window in enumerate(windows):
        for i, image in enumerate(images):
            slow = {
                (y, x): float((image[:, y : y + 3, x : x + 3] - window).square().mean())
                for y in range(5)
                for x in range(7)
            }
            assert found[w, i] == pytest.approx(min(slow.values()), rel=1e-5)
            assert tuple(corners[w, i]) == min(slow, key=lambda at: slow[at])


def test_a_moving_mark_is_found_at_any_phase():
    rows, own, corners = make_class(40, MARK)
    _, others, _ = make_class(40, seed=5)
    (template, *_) = find_templates("cat", rows, own, others, 16)
    ratios, at = template.locate(own)
    assert (ratios < 0.05).tolist() == [i < 20 for i in range(40)]
    assert template.uniformity[0] > 0.99
    offsets = at[:20] - corners
    assert (offsets == offsets[0]).all(), "the windows lie at one place of the mark, to the pixel"
    assert len({tuple(one % 8) for one in corners}) > 8, "which the patches cut at many phases"


def test_alike_textures_are_no_copies():
    rows, own, _ = make_class(40)
    _, others, _ = make_class(40, seed=5)
    assert find_templates("cat", rows, own, others, 16) == []


def test_what_other_classes_show_as_well_is_no_copy_of_this_one():
    rows, own, _ = make_class(40, MARK)
    _, others, _ = make_class(40, MARK, seed=5)
    found = find_templates("cat", rows, own, others[:20], 16)  # each of them shows it
    assert all(one.uniformity[0] < LEAST_LIMIT for one in found)


def test_copies_in_some_items_of_other_classes_are_not_taken_for_chance():
    assert measure_chance(np.array([0.0, 0.001, 1.0, 1.0, 1.2])) == pytest.approx(1.0)


def test_copies_are_grown_to_the_pixel():
    _, own, corners = make_class(40, MARK)
    _, usual, _ = make_class(40, seed=5)
    inside = corners + np.array([3, 5])  # where a window of 6 pixels lies in the mark
    grown = grow_copies(inside, 6, own[:20].float(), usual.float())
    for corner, (top, left) in zip(inside, corners, strict=True):
        mask = grown.cover(corner)
        truth = np.zeros((SIZE, SIZE), bool)
        truth[top : top + 12, left : left + 16] = True
        assert (mask & truth).sum() > 0.7 * truth.sum() and (mask & ~truth).sum() < 0.1 * truth.sum()


def test_a_frame_is_grown_from_windows_at_several_places():
    rng = np.random.default_rng(2)
    own, usual = rng.normal(size=(2, 30, 3, SIZE, SIZE))
    frame = np.ones((SIZE, SIZE), bool)
    frame[4:-4, 4:-4] = False
    own[:, :, frame] = 2.0
    corners = np.array([[0, 12], [20, 0], [0, 30]] * 10)
    grown = grow_copies(corners, 6, torch.from_numpy(own), torch.from_numpy(usual))
    mask = grown.cover(corners[1])
    assert mask[frame].mean() > 0.7 and mask[8:-8, 8:-8].mean() < 0.05
    shown = [grown.find_shown(torch.from_numpy(some), corners) for some in (own, usual)]
    assert shown[0].all() and not shown[1].any(), "a framed image is no control, whether its window was matched or not"


def test_windows_beside_the_edge_touch_it():
    assert [place_window(patch, 6, 48, 6) for patch in range(6)] == [0, 9, 17, 25, 33, 42]
    rows, images, _ = make_class(2)
    windows, sources = cut_windows(rows, images, 6)
    assert windows.shape == (6, 3, 6, 6) and sources == [0, 0, 0, 1, 1, 1]


def test_the_larger_the_effect_the_lower_the_limit():
    limits = [lower_limit(effect) for effect in (-0.2, 0.0, 0.1, 0.3, 0.5, 0.9)]
    assert limits == sorted(limits, reverse=True) and limits[0] == LIMIT and limits[-1] == LEAST_LIMIT
