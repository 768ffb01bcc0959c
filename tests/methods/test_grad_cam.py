"""Grad-CAM on attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import grad_cam

# One head; row 0 is CLS and two patches.
ATTENTION = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.4, 0.4, 0.2]], dtype=torch.double).reshape(1, 1, 1, 3, 3)
GRADIENT = torch.tensor([[9.0, 1.0, 3.0], [-4.0, 0.0, 0.0], [0.0, 0.0, 9.0]], dtype=torch.double).reshape(1, 1, 1, 3, 3)
SPECIAL = torch.tensor([[True, False, False]])
one_or_the_other = pytest.mark.parametrize("form", ["vit", "bert"])


def double(*numbers):
    return torch.tensor([numbers], dtype=torch.double)


def test_vit_form_by_hand(cls):
    """The weight is the mean of 1 and 3, the patches of row 0; the 9 of CLS does not count."""
    assert_close(grad_cam(ATTENTION, GRADIENT, *cls(3), SPECIAL), double(0.4, 0.6, 1.0))


def test_bert_form_by_hand(cls):
    """The weight is 18 / 9, over the whole matrix; the cell of CLS is 0."""
    assert_close(grad_cam(ATTENTION, GRADIENT, *cls(3), SPECIAL, form="bert"), double(0.0, 0.6, 1.0))


def test_vit_form_scaled_by_hand(cls):
    """The patches range from 0.6 to 1.0; CLS, below them, is cut off at 0."""
    assert_close(grad_cam(ATTENTION, GRADIENT, *cls(3), SPECIAL, normalise=True), double(0.0, 0.0, 1.0))


def test_bert_form_scaled_by_hand(cls):
    """The whole matrix ranges from 0.2 to 1.6."""
    scores = grad_cam(ATTENTION, GRADIENT, *cls(3), SPECIAL, form="bert", normalise=True)
    assert_close(scores, double(0.0, 0.4 / 1.4, 0.8 / 1.4))


def test_heads_are_averaged_before_the_cut(cls):
    """One head says 1, the other -3: together -1, cut to 0. Cut first, it would be 1/2."""
    attention = torch.ones(1, 1, 2, 3, 3, dtype=torch.double) / 3
    gradient = torch.tensor([3.0, -9.0], dtype=torch.double).reshape(1, 1, 2, 1, 1).expand_as(attention)
    assert_close(grad_cam(attention, gradient, *cls(3), SPECIAL), double(0.0, 0.0, 0.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 6), st.integers(0, 99), st.booleans())
def test_vit_form_written_slowly(random_capture, run, heads, tokens, seed, normalise):
    capture = random_capture(heads=heads, tokens=tokens, seed=seed)
    a, g = capture["attention"][-1, 0], capture["attention_grad"][-1, 0]
    patches = range(1, tokens)
    weight = [sum(g[h, 0, j] for j in patches) / len(patches) for h in range(heads)]
    cam = torch.stack([sum(weight[h] * a[h, 0, j] for h in range(heads)) / heads for j in patches]).clamp(min=0)
    if normalise:
        spread = cam.max() - cam.min()
        cam = (cam - cam.min()) / spread if spread > 0 else torch.zeros_like(cam)
    assert_close(run("grad_cam", capture, normalise=normalise)[0, 1:], cam)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 6), st.integers(0, 99), st.booleans())
def test_bert_form_written_slowly(random_capture, run, heads, tokens, seed, normalise):
    capture = random_capture(heads=heads, tokens=tokens, seed=seed)
    a, g = capture["attention"][-1, 0], capture["attention_grad"][-1, 0]
    cam = sum(g[h].mean() * a[h] for h in range(heads)).clamp(min=0) / heads
    if normalise:
        spread = cam.max() - cam.min()
        cam = (cam - cam.min()) / spread if spread > 0 else torch.zeros_like(cam)
    assert_close(run("grad_cam", capture, form="bert", normalise=normalise)[0, 1:], cam[0, 1:])
    assert run("grad_cam", capture, form="bert", normalise=normalise)[0, 0] == 0


@one_or_the_other
def test_a_map_that_is_nowhere_positive_is_zero(random_capture, run, form):
    """Where the released code gives NaN."""
    capture = random_capture()
    capture["attention_grad"] = -torch.ones_like(capture["attention_grad"])
    for normalise in (False, True):
        scores = run("grad_cam", capture, form=form, normalise=normalise)
        assert_close(scores, torch.zeros_like(scores))


def test_a_map_without_contrast_is_zero_when_scaled(cls):
    """Both patches get 0.2: there is nothing to tell apart, and CLS, which gets more, is no patch."""
    attention = torch.tensor([0.6, 0.2, 0.2], dtype=torch.double).expand(1, 1, 1, 3, 3)
    scores = grad_cam(attention, torch.ones_like(attention), *cls(3), SPECIAL, normalise=True)
    assert_close(scores, double(0.0, 0.0, 0.0))


def test_without_patches_nothing_speaks_for_the_class(random_capture, run):
    """An empty mean is 0 here, not NaN."""
    capture = random_capture(tokens=1)
    for normalise in (False, True):
        scores = run("grad_cam", capture, normalise=normalise)
        assert_close(scores, torch.zeros_like(scores))


@one_or_the_other
def test_scaling_looks_at_one_example_only(random_capture, run, form):
    capture = random_capture(batch=2, tokens=5)
    capture["attention_grad"] = capture["attention_grad"].abs() * torch.tensor([1.0, 1000.0]).reshape(1, 2, 1, 1, 1)
    together = run("grad_cam", capture, form=form, normalise=True)
    for example in (0, 1):
        alone = {
            name: site[:, example : example + 1]
            if "attention" in name or "hidden" in name
            else site[example : example + 1]
            for name, site in capture.items()
        }
        assert_close(together[example : example + 1], run("grad_cam", alone, form=form, normalise=True))


def test_a_model_that_pools_reads_the_mean_row(random_capture, run):
    """It has no cell of its own, so the BERT form sets none to 0."""
    capture = random_capture(tokens=4)
    capture["attention_grad"] = capture["attention_grad"].abs()
    pooled = capture | {"readout": torch.full((1, 4), 0.25, dtype=torch.double)}
    a, g = capture["attention"][-1, 0], capture["attention_grad"][-1, 0]
    vit = (g.mean(1)[:, 1:].mean(-1)[:, None] * a.mean(1)).mean(0)
    bert = (g.mean((1, 2))[:, None, None] * a).mean(0).mean(0)
    assert_close(run("grad_cam", pooled)[0], vit)
    assert_close(run("grad_cam", pooled, form="bert")[0], bert)


def test_takes_the_layer_it_is_told(random_capture, run):
    capture = random_capture(layers=3)
    first = capture | {name: capture[name][:1] for name in ("attention", "attention_grad")}
    assert_close(run("grad_cam", capture, layer=0), run("grad_cam", first))
    assert_close(run("grad_cam", capture, layer=2), run("grad_cam", capture))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"form": "gpt"}, r"form must be one of 'vit', 'bert'; got 'gpt'\."),
        ({"layer": -4}, r"layer must be between .* for this model, got -4"),
        ({"normalise": "no"}, r"normalise must be one of .*; got 'no'"),
    ],
)
def test_refuses_what_it_does_not_have(random_capture, run, wrong, message):
    with pytest.raises(MethodError, match=message):
        run("grad_cam", random_capture(layers=3), **wrong)
