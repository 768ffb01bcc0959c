"""Partial LRP."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import partial_lrp

# Two heads of a single layer; what matters is row 0.
RELEVANCE = torch.tensor([[[0.5, -1.0], [9.0, 9.0]], [[0.1, 0.4], [9.0, 9.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)


def test_two_heads_by_hand(cls):
    """The -1 of head 0 is cut off before the mean: (0 + 0.4) / 2, not (-1 + 0.4) / 2."""
    assert_close(partial_lrp(RELEVANCE, *cls(2)), torch.tensor([[0.3, 0.2]], dtype=torch.double))


def test_the_own_cell(cls):
    assert_close(partial_lrp(RELEVANCE, *cls(2), own="zero"), torch.tensor([[0.0, 0.2]], dtype=torch.double))
    assert_close(partial_lrp(RELEVANCE, *cls(2), own="min"), torch.tensor([[0.2, 0.2]], dtype=torch.double))


def test_positive_relevance_of_one_head_is_read_like_attention(random_capture, run):
    capture = random_capture(heads=1)
    capture["attention_relevance"] = capture["attention"]
    for layer in range(3):
        assert_close(run("partial_lrp", capture, layer=layer), run("raw_attention", capture, layer=layer))
    assert_close(run("partial_lrp", capture), run("raw_attention", capture))


def test_refuses_a_layer_that_is_not_there(random_capture, run):
    with pytest.raises(MethodError, match=r"layer must be between .* for this model, got 7"):
        run("partial_lrp", random_capture(layers=3), layer=7)
