"""LeGrad."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.methods import legrad


def test_two_heads_one_layer_by_hand(cls):
    """Positive parts of the row that is read: head 0 (2, 0), head 1 (0, 2); their mean."""
    gradient = torch.tensor([[[2.0, -4.0], [-1.0, 3.0]], [[-1.0, 2.0], [1.0, -9.0]]]).reshape(1, 1, 2, 2, 2).double()
    attention = torch.full((1, 1, 2, 2, 2), 0.5, dtype=torch.double)
    assert_close(legrad(attention, gradient, *cls(2)), torch.tensor([[1.0, 1.0]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_written_slowly(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    g = capture["attention_grad"]
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for key in range(tokens):
        for layer in range(layers):
            for query in range(tokens):
                cells = [max(g[layer, 0, h, query, key].item(), 0) for h in range(heads)]
                expected[0, key] += capture["readout"][0, query].item() * sum(cells) / len(cells)
    assert_close(run("legrad", capture), expected)


def test_a_model_that_reads_the_mean_has_the_mean_of_all_rows(random_capture, run):
    capture = random_capture(layers=2, heads=2, tokens=4)
    mean = torch.full_like(capture["readout"], 1 / 4)
    wanted = capture["attention_grad"].clamp(min=0).mean(dim=(2, 3)).sum(0)
    assert_close(run("legrad", capture | {"readout": mean}), wanted)


def test_what_cannot_be_attended_to_gets_nothing(cls):
    """Under a causal mask the first token sees itself alone."""
    gradient = torch.full((1, 1, 1, 3, 3), 6.0, dtype=torch.double)
    attention = torch.ones(3, 3, dtype=torch.double).tril().expand(1, 1, 1, 3, 3)
    assert_close(legrad(attention, gradient, *cls(3)), torch.tensor([[6.0, 0.0, 0.0]], dtype=torch.double))


def test_a_gradient_that_is_nowhere_positive_gives_nothing(random_capture, run):
    capture = random_capture()
    capture["attention_grad"] = -capture["attention_grad"].abs()
    assert not run("legrad", capture).any()


def test_attention_too_small_for_half_precision_is_no_mask(cls):
    """Head 0 pays so little to token 1 that it is 0 in 16 bits; head 1 pays some, so nothing is shut off."""
    attention = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]]).reshape(1, 1, 2, 2, 2).double()
    gradient = torch.ones(1, 1, 2, 2, 2, dtype=torch.double)
    assert legrad(attention, gradient, *cls(2)).tolist() == [[1, 1]]
