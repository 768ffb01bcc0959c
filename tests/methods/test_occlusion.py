"""Occlusion: windows over patches or tokens, and what is lost under them."""

import pytest
import torch
from conftest import animal
from games import PICTURES, TEXTS, WORTH, WORTH_OF_PICTURES, WORTH_OF_TEXTS, AddsPatches, AddsWords, Game
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods import occlusion
from whyformer.methods.occlusion import find_window_starts, make_windows


def test_windows_reach_the_far_edge():
    assert find_window_starts(5, 2, 2) == [0, 2, 3]
    assert find_window_starts(6, 2, 2) == [0, 2, 4]
    assert find_window_starts(2, 3, 1) == [0]
    cover = make_windows((3, 3), 2, 1).reshape(-1, 3, 3)
    assert len(cover) == 4
    assert cover[0].int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert cover.sum((1, 2)).tolist() == [4] * 4


def test_by_hand():
    """Windows {0,1} and {1,2} lose 4 and 0; each member gets half, the middle the mean of its two windows."""
    game = Game(lambda there: 4.0 * (0 in there), 3)
    assert occlusion(game, size=2).tolist() == [[2, 1, 0]]
    assert game.rows_asked == 2


def test_of_one_is_leave_one_out():
    for module, inputs, worth in (
        (AddsWords(WORTH), TEXTS, WORTH_OF_TEXTS),
        (AddsPatches(), PICTURES, WORTH_OF_PICTURES),
    ):
        assert_close(why.explain(module, inputs, "occlusion", target=0, size=1).scores, worth)
    vit = animal("vit")
    one, other = (
        why.explain(vit.module, vit.inputs, name, target=0, **size).scores
        for name, size in (("occlusion", {"size": 1}), ("leave_one_out", {}))
    )
    assert_close(one, other)


def test_the_definition_written_slowly():
    vit, pixels = animal("vit").module, animal("vit").inputs["pixel_values"][:1]
    found = why.explain(vit, pixels, "occlusion", target=2, size=2, stride=2).map()
    with torch.no_grad():
        before = vit(pixels).logits[0, 2]
        for row in range(2):
            for column in range(2):
                covered = pixels.clone()
                covered[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
                lost = before - vit(covered).logits[0, 2]
                assert_close(found[2 * row : 2 * row + 2, 2 * column : 2 * column + 2], (lost / 4).expand(2, 2))


def test_settings_are_checked():
    with pytest.raises(MethodError, match=r"size must be a whole number >= 1, got 0"):
        occlusion(Game(lambda there: 1.0, 2), size=0)
    with pytest.raises(MethodError, match=r"stride must be a whole number >= .*, got 1\.5"):
        occlusion(Game(lambda there: 1.0, 2), stride=1.5)


def test_windows_that_leave_gaps_are_refused():
    """What no window covers would be 0 / 0."""
    with pytest.raises(MethodError, match="stride must be <= size=2, got 3"):
        occlusion(Game(lambda there: 0.0, 9), size=2, stride=3)
