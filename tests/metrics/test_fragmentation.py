"""Fragmentation by hand: maps whose parts can be counted on the page."""

from dataclasses import replace

import pytest
import torch
from conftest import animal

import whyformer as why
from whyformer.errors import WhyformerError
from whyformer.metrics import fragment_spread, fragments
from whyformer.metrics.fragmentation import count_parts, measure_spread


@pytest.fixture(scope="module")
def explained():
    it = animal("vit")
    return why.explain(it.module, {key: value[:1] for key, value in it.inputs.items()}, "rollout", target=0)


def draw(explained, rows):
    """An explanation with this map in place of its own."""
    values = torch.tensor(rows, dtype=torch.float64)
    assert values.shape == explained.map(0).shape
    return replace(explained, scores=values.reshape(1, -1), pixels=None)


def test_parts_touch_by_sides_and_corners():
    kept = ["1.1.", ".1..", "...1", "1..."]
    kept = torch.tensor([[mark == "1" for mark in row] for row in kept])
    assert count_parts(kept) == 3  # the V; the single patch below it on the right; the one at the bottom
    kept[1, 2] = True  # joins the V and the patch on the right by a corner
    assert count_parts(kept) == 2


def test_the_highest_patches_that_hold_the_share(explained):
    size = explained.map(0).shape
    rows = torch.zeros(size)
    rows[0, 0], rows[-1, -1], rows[0, -1], rows[-1, 0] = 5, 3, 1.5, -9  # positive mass 9.5: 5 and 3 hold 84 %
    one = draw(explained, rows.tolist())
    assert float(fragments(one)) == 2
    assert float(fragments(one, holds=0.5)) == 1
    assert float(fragments(one, holds=1)) == 3


def test_equal_patches_are_kept_together_and_nothing_is_undefined(explained):
    size = explained.map(0).shape
    assert float(fragments(draw(explained, torch.ones(size).tolist()))) == 1
    assert fragments(draw(explained, (-torch.ones(size)).tolist())).isnan().all()
    assert fragment_spread(draw(explained, torch.zeros(size).tolist())).isnan().all()


def test_the_spread_of_an_even_map_is_one_and_of_a_patch_none():
    assert measure_spread(torch.ones(5, 7)) == pytest.approx(1)
    point = torch.zeros(5, 7)
    point[3, 2] = 4
    assert measure_spread(point) == 0
    two = torch.zeros(3, 3)
    two[0, 0] = two[2, 2] = 1  # each sqrt(2) from the centre; an even map has variance 8/12 + 8/12
    assert measure_spread(two) == pytest.approx((2 / (16 / 12)) ** 0.5)


def test_texts_and_odd_shares_are_refused(explained):
    with pytest.raises(WhyformerError, match="above 0 and at most 1"):
        fragments(explained, holds=0)
    text = why.explain("demo/sentiment", "a good film", "rollout")
    with pytest.raises(WhyformerError, match="no fragments"):
        fragments(text)
