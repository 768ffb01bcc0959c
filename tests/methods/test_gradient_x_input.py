"""Gradient times input."""

import torch
from torch.testing import assert_close

from whyformer.methods import gradient_x_input


def test_by_hand():
    x = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    grad = torch.tensor([[[0.5, -1.0], [2.0, 9.0]]])
    assert_close(gradient_x_input(x, grad), torch.tensor([[-1.5, 6.0]]))


def test_explains_a_linear_model_completely(random_capture, run):
    """y = <w, x>: the scores sum to y."""
    capture = random_capture()
    y = (capture["input"] * capture["input_grad"]).sum()
    assert_close(run("gradient_x_input", capture).sum(), y)


def test_is_the_slope_along_a_scaled_token():
    """d/dt y(x with token j times t) at t = 1, by central differences."""
    x = torch.randn(1, 3, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def score(x):
        return (x.sum(1).tanh() * torch.arange(4)).sum()

    def slope(token, step=1e-5):
        up, down = torch.ones(2, 3, 1, dtype=torch.double)
        up[token] += step
        down[token] -= step
        return (score(x * up) - score(x * down)) / (2 * step)

    (grad,) = torch.autograd.grad(score(x), x)
    slopes = torch.stack([slope(token) for token in range(3)])
    assert_close(
        gradient_x_input(x, grad)[0], slopes, rtol=1e-8, atol=1e-9
    )  # the differences are exact to step squared


def test_pixels_keep_their_place():
    x = torch.ones(2, 3, 5, 4)
    assert_close(gradient_x_input(x, 2 * x), torch.full((2, 3, 5), 8.0))
