"""Full LRP: what a method does with relevance that has arrived. The rules have tests of their own."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import lrp

TOKENS = torch.tensor([[[0.5, -0.25], [0.75, 0.0], [-1.0, 1.0]]], dtype=torch.double)


def test_sums_over_channels_by_hand(cls):
    assert_close(lrp(TOKENS, cls(3)[0]), torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.double))


def test_all_relevance_is_kept(random_capture, run):
    capture = random_capture()
    assert_close(run("lrp", capture).sum(), capture["input_relevance"].sum())


def test_pixels_keep_their_place(cls):
    pixels = torch.arange(24.0, dtype=torch.double).reshape(1, 2, 4, 3)
    assert_close(lrp(pixels, cls(3)[0]), torch.tensor([[[3.0, 12, 21, 30], [39, 48, 57, 66]]], dtype=torch.double))


def test_the_readout_token_may_be_left_out(cls):
    assert_close(lrp(TOKENS, cls(3)[0], own="zero"), torch.tensor([[0.0, 0.75, 0.0]], dtype=torch.double))


def test_nothing_is_read_at_a_pixel(cls):
    with pytest.raises(
        MethodError, match=r"own='zero' applies to tokens, but these scores belong to pixels\. Use own='keep'"
    ):
        lrp(torch.zeros(1, 2, 4, 3), cls(3)[0], own="zero")


def test_a_model_that_pools_has_no_token_to_leave_out():
    with pytest.raises(MethodError, match=r"own='zero' replaces the score of the readout token, but this model pools"):
        lrp(TOKENS, torch.full((1, 3), 1 / 3), own="zero")


def test_the_smallest_score_is_no_choice_here(cls):
    with pytest.raises(MethodError, match=r"own must be one of 'keep', 'zero'; got 'min'\."):
        lrp(TOKENS, cls(3)[0], own="min")
