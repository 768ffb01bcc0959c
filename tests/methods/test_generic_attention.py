"""Generic attention explainability."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import generic_attention

ATTENTION = torch.tensor([[[0.5, 0.5], [0.2, 0.8]], [[0.1, 0.9], [1.0, 0.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)
GRADIENT = torch.tensor([[[2.0, -4.0], [0.0, 0.0]], [[-1.0, 2.0], [0.0, 0.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)


def test_two_heads_one_layer_by_hand(cls):
    """Products in row 0: (1, -2) and (-0.1, 1.8); cut off head by head, the mean is (0.5, 0.9); plus the identity."""
    assert_close(generic_attention(ATTENTION, GRADIENT, *cls(2), ()), torch.tensor([[1.5, 0.9]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_the_update_of_the_whole_matrix_written_slowly(random_capture, run, layers, heads, tokens, seed):
    """R = I; R = R + A R from the input to the output."""
    capture = random_capture(layers, heads, tokens, seed=seed)
    relevancy = torch.eye(tokens, dtype=torch.double)
    for a, g in zip(capture["attention"], capture["attention_grad"], strict=True):
        bar = torch.stack([(a[0, h] * g[0, h]).clamp(min=0) for h in range(heads)]).mean(0)
        relevancy = relevancy + bar @ relevancy
    assert_close(run("generic_attention", capture)[0], relevancy[0])


def test_is_transformer_attribution_with_attention_for_relevance(random_capture, run):
    capture = random_capture()
    capture["attention_relevance"] = capture["attention"]
    for start in (0, 1, -1):
        same = run("transformer_attribution", capture, start=start)
        assert_close(run("generic_attention", capture, start=start), same)


def test_the_own_cell(random_capture, run):
    capture = random_capture()
    scores = run("generic_attention", capture, own="zero")
    assert scores[0, 0] == 0
    assert_close(scores[:, 1:], run("generic_attention", capture)[:, 1:])


def test_refuses_a_layer_that_is_not_there(random_capture, run):
    with pytest.raises(MethodError, match=r"start must be between .* for this model, got -4"):
        run("generic_attention", random_capture(layers=3), start=-4)
