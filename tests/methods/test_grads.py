"""Grads."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import grads


def test_two_heads_by_hand(cls):
    """Row 0 of the gradients: (2, -4) and (-1, 2); the mean is (0.5, -1). What attention is paid does not matter."""
    gradient = torch.tensor([[[2.0, -4.0], [7.0, 7.0]], [[-1.0, 2.0], [7.0, 7.0]]]).reshape(1, 1, 2, 2, 2).double()
    for paid in (0.5, 0.01):
        attention = torch.tensor([paid, 1 - paid]).expand(1, 1, 2, 2, 2).double()
        assert_close(grads(attention, gradient, *cls(2)), torch.tensor([[0.5, -1.0]], dtype=torch.double))


def test_what_cannot_be_attended_to_gets_nothing(cls):
    """A causal mask: row 0 sees token 0 alone."""
    gradient = torch.full((1, 1, 1, 3, 3), 5.0, dtype=torch.double)
    attention = torch.ones(3, 3, dtype=torch.double).tril().softmax(-1).tril().expand(1, 1, 1, 3, 3)
    assert_close(grads(attention, gradient, *cls(3)), torch.tensor([[5.0, 0.0, 0.0]], dtype=torch.double))


def test_written_slowly(random_capture, run):
    capture = random_capture(layers=2, heads=3, tokens=4)
    generator = torch.Generator().manual_seed(1)
    capture["readout"] = torch.rand(1, 4, dtype=torch.double, generator=generator)
    for layer in (0, 1, -1):
        g = capture["attention_grad"][layer, 0]
        expected = [
            sum(capture["readout"][0, q] * sum(g[h, q, key] for h in range(3)) / 3 for q in range(4))
            for key in range(4)
        ]
        assert_close(run("grads", capture, layer=layer)[0], torch.stack(expected))


def test_is_the_slope_along_more_attention(random_capture, cls):
    """y = <w, A v> with A free: the score of a key is d y / d A[CLS, key], by central differences."""
    generator = torch.Generator().manual_seed(0)
    value, w = torch.randn(3, 4, generator=generator).double(), torch.randn(4, generator=generator).double()
    attention = torch.randn(3, 3, generator=generator).double().softmax(-1)

    def score(attention):
        return ((attention @ value)[0] * w).sum().tanh()

    slopes = []
    for key in range(3):
        up, down = attention.clone(), attention.clone()
        up[0, key] += 1e-6
        down[0, key] -= 1e-6
        slopes.append((score(up) - score(down)) / 2e-6)
    leaf = attention.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score(leaf), leaf)
    found = grads(attention[None, None, None], gradient[None, None, None], *cls(3))
    assert_close(found[0], torch.stack(slopes), rtol=1e-7, atol=1e-9)


def test_the_other_class_of_two_gets_the_opposite(random_capture, run):
    capture = random_capture()
    turned = capture | {"attention_grad": -capture["attention_grad"]}
    assert_close(run("grads", turned), -run("grads", capture))


def test_refuses_a_layer_that_is_not_there(random_capture, run):
    with pytest.raises(MethodError, match=r"layer must be between .* for this model, got 3"):
        run("grads", random_capture(layers=3), layer=3)
