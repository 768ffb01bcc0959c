"""RISE: random masks, and the mean answer under them."""

import pytest
import torch
from conftest import animal
from games import PICTURES, AddsPatches, Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods import rise
from whyformer.methods.rise import RiseMasks


def test_by_hand():
    """Two tokens, one mask that keeps the first alone: whatever is kept gets p / (1 x 1/2)."""
    game = Game(lambda there: 0.0, 2)
    found = next(
        (seed, kept)
        for seed in range(50)
        if (kept := torch.rand(1, 2, dtype=torch.float64, generator=make_generator(seed, 5)) < 0.5).tolist()
        == [[True, False]]
    )
    assert rise(game, budget=1, seed=found[0]).tolist() == [[1.0, 0.0]]  # p is 1/2


def test_the_token_that_decides_stands_out():
    scores = rise(Game(lambda there: 8.0 * (2 in there) - 4.0, 5), budget=400)[0]
    assert scores.argmax() == 2
    assert_close(scores[2], torch.tensor(4.0).double().sigmoid(), rtol=0.1, atol=0)
    others = scores[[0, 1, 3, 4]]
    assert_close(others, torch.full((4,), 0.5).double(), rtol=0.15, atol=0)  # it is there half of the time


def test_coverage_takes_out_how_often_a_token_was_kept():
    """A constant answer is the same everywhere, at any budget; divided by what was expected, it is not."""
    game = Game(lambda there: 0.0, 6)
    assert_close(rise(game, budget=20, normalise="coverage"), torch.full((1, 6), 0.5).double())
    assert rise(game, budget=20).unique().numel() > 1


def test_the_definition_written_slowly():
    """Of an image, mask by mask, blended with its mean colour by hand."""
    vit, pixels = animal("vit").module, animal("vit").inputs["pixel_values"][:1]
    e = why.explain(vit, pixels, "rise", target=2, budget=6, cells=3, kept=0.4, fill="mean", seed=1)
    masks = RiseMasks.draw(6, 3, 0.4, (16, 16), make_generator(1, fingerprint_tensor(pixels[0].float())))
    empty = pixels.mean((2, 3), keepdim=True)
    wanted = torch.zeros(16, 16, dtype=torch.float64)
    for i in range(6):
        mask = masks.enlarge(i)
        with torch.no_grad():
            p = vit(pixels * mask + empty * (1 - mask)).logits.softmax(-1)[0, 2]
        wanted += p * mask / (6 * 0.4)
    assert_close(e.pixels[0], wanted)


def test_masks_are_smooth_and_cover_as_much_as_they_should():
    masks = RiseMasks.draw(300, 4, 0.3, (20, 30), make_generator(0, 0))
    large = torch.stack([masks.enlarge(i) for i in range(300)])
    assert large.shape == (300, 20, 30)
    assert large.min() >= 0 and large.max() <= 1 + 1e-12
    assert ((large > 0.01) & (large < 0.99)).double().mean() > 0.3
    assert abs(large.mean() - 0.3) < 0.02
    assert (large.mean(0) - 0.3).abs().max() < 0.12
    assert len({tuple(corner) for corner in masks.corner.tolist()}) > 20
    assert masks.corner.amax(0).tolist() == [4, 7]  # a cell is 5 x 8 pixels


def test_a_mask_is_a_crop_of_the_enlarged_grid():
    masks = RiseMasks.draw(9, 3, 0.5, (10, 14), make_generator(0, 0))
    slow = []
    for small, (top, left) in zip(masks.small_masks, masks.corner.tolist(), strict=True):
        wide = torch.nn.functional.interpolate(small[None, None], size=(16, 20), mode="bilinear")[0, 0]
        slow.append(wide[top : top + 10, left : left + 14])
    slow = torch.stack(slow)
    assert_close(masks.enlarge(torch.arange(9)), slow, rtol=0, atol=1e-12)
    answers = torch.rand(9, dtype=torch.float64, generator=make_generator(0, 1))
    total, covered = masks.sum_answers(answers)
    assert_close(total, (answers[:, None, None] * slow).sum(0))
    assert_close(covered, slow.sum(0))


def test_one_coin_is_all_or_nothing():
    masks = RiseMasks.draw(10, 1, 0.5, (8, 8), make_generator(0, 0))
    assert all(masks.enlarge(i).unique().tolist() in ([0.0], [1.0]) for i in range(10))


def test_a_picture_gets_a_map_of_pixels():
    e = why.explain(AddsPatches(), PICTURES, "rise", target=0, budget=50, cells=2)
    assert e.pixels.shape == (2, 4, 4)
    assert e.scores.min() >= 0
    assert e.spent["forward"] == 1 + 50


def test_seeds_and_settings():
    game = Game(additive_game([1.0, 2.0, 3.0]), 3)
    one, again, other = (rise(game, budget=9, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    with pytest.raises(MethodError, match="kept must be a number > 0 and <= 1, got 0"):
        rise(game, kept=0)
    with pytest.raises(MethodError, match=r"kept must be a number > 0 and <= 1, got 1\.5"):
        rise(game, kept=1.5)
    with pytest.raises(MethodError, match=r"normalise must be one of .*; got 'none'"):
        rise(game, normalise="none")
    with pytest.raises(MethodError, match="fill='drop' removes whole patches"):
        why.explain(AddsPatches(), PICTURES, "rise", fill="drop")
    with pytest.raises(MethodError, match="fill='mask' is not a choice for an image"):
        why.explain(AddsPatches(), PICTURES, "rise", fill="mask")
