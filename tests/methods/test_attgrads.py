"""AttGrads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import attgrads

ATTENTION = torch.tensor([[[0.5, 0.5], [0.2, 0.8]], [[0.1, 0.9], [1.0, 0.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)
GRADIENT = torch.tensor([[[2.0, -4.0], [0.0, 0.0]], [[-1.0, 2.0], [0.0, 0.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)


def test_two_heads_one_layer_by_hand(cls):
    """Products in row 0: (1, -2) and (-0.1, 1.8), nothing cut off; the mean is (0.45, -0.1)."""
    special = torch.tensor([[True, False]])
    assert_close(attgrads(ATTENTION, GRADIENT, *cls(2), special), torch.tensor([[0.45, -0.1]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_written_slowly(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    capture["readout"] = torch.rand(1, tokens, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    a, g, r = capture["attention"], capture["attention_grad"], capture["readout"]
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for key in range(tokens):
        for layer in range(layers):
            for query in range(tokens):
                cells = [a[layer, 0, h, query, key] * g[layer, 0, h, query, key] for h in range(heads)]
                expected[0, key] += r[0, query] * sum(cells) / heads
    assert_close(run("attgrads", capture), expected)


def test_the_layers_add_up(random_capture, run):
    capture = random_capture(layers=3)
    single = [
        run("attgrads", capture | {site: capture[site][layer : layer + 1] for site in ("attention", "attention_grad")})
        for layer in range(3)
    ]
    assert_close(run("attgrads", capture), sum(single))
    assert_close(run("attgrads", capture, start=1), single[1] + single[2])


@pytest.mark.parametrize("seed", range(4))
def test_the_released_form_is_grad_cam_of_the_last_block_written_slowly(random_capture, run, seed):
    """As in the released code: heads weighted by their mean gradient, averaged, clipped, scaled, CLS set to 0."""
    capture = random_capture(layers=3, heads=2, tokens=4, seed=seed)
    attention, gradient = capture["attention"][-1, 0], capture["attention_grad"][-1, 0]
    cam = sum(gradient[head].mean() * attention[head] for head in range(2)) / 2
    cam = cam.clamp(min=0)
    cam = (cam - cam.min()) / (cam.max() - cam.min())
    cam[0, 0] = 0
    released = run("attgrads", capture, preset="released")
    assert_close(released, cam[:1])
    assert_close(released, run("grad_cam", capture, form="bert", normalise=True))
    assert_close(run("attgrads", capture, preset="released", start=0, form="product"), run("attgrads", capture))


def test_the_other_class_of_two_gets_the_opposite(random_capture, run):
    capture = random_capture()
    turned = capture | {"attention_grad": -capture["attention_grad"]}
    assert_close(run("attgrads", turned), -run("attgrads", capture))


def test_cut_off_head_by_head_it_is_a_step_of_generic_attention(random_capture, run):
    capture = random_capture(layers=1)
    capture["attention_grad"] = capture["attention_grad"].abs()
    assert_close(run("attgrads", capture) + capture["readout"], run("generic_attention", capture))


def test_the_own_cell(random_capture, run):
    capture = random_capture()
    scores = run("attgrads", capture, own="zero")
    assert scores[0, 0] == 0
    assert_close(scores[:, 1:], run("attgrads", capture)[:, 1:])


def test_refuses_what_is_not_there(random_capture, run):
    with pytest.raises(MethodError, match=r"start must be between .* for this model, got 3"):
        run("attgrads", random_capture(layers=3), start=3)
    with pytest.raises(MethodError, match=r"preset must be one of 'paper', 'released'; got 'code'\."):
        run("attgrads", random_capture(), preset="code")
