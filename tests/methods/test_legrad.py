"""LeGrad."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.methods import legrad


def test_two_heads_one_layer_by_hand(cls):
    """Positive parts, column by column: head 0 (2 + 0, 0 + 3) / 2, head 1 (0 + 1, 2 + 0) / 2; their mean."""
    gradient = torch.tensor([[[2.0, -4.0], [-1.0, 3.0]], [[-1.0, 2.0], [1.0, -9.0]]]).reshape(1, 1, 2, 2, 2).double()
    attention = torch.full((1, 1, 2, 2, 2), 0.5, dtype=torch.double)
    assert_close(legrad(attention, gradient, *cls(2)), torch.tensor([[0.75, 1.25]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_written_slowly(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    g = capture["attention_grad"]
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for key in range(tokens):
        for layer in range(layers):
            cells = [max(g[layer, 0, h, q, key].item(), 0) for h in range(heads) for q in range(tokens)]
            expected[0, key] += sum(cells) / len(cells)
    assert_close(run("legrad", capture), expected)


def test_does_not_ask_where_the_answer_is_read(random_capture, run):
    capture = random_capture(tokens=4)
    elsewhere = capture | {"readout": capture["readout"].roll(2, dims=-1)}
    assert_close(run("legrad", elsewhere), run("legrad", capture))


def test_what_cannot_be_attended_to_gets_nothing(cls):
    """Under a causal mask the last token is seen by itself alone: one query of three."""
    gradient = torch.full((1, 1, 1, 3, 3), 6.0, dtype=torch.double)
    attention = torch.ones(3, 3, dtype=torch.double).tril().expand(1, 1, 1, 3, 3)
    assert_close(legrad(attention, gradient, *cls(3)), torch.tensor([[6.0, 4.0, 2.0]], dtype=torch.double))


def test_a_gradient_that_is_nowhere_positive_gives_nothing(random_capture, run):
    capture = random_capture()
    capture["attention_grad"] = -capture["attention_grad"].abs()
    assert not run("legrad", capture).any()
