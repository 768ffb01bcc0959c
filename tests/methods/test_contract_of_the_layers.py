"""Layers are recomputed on access: every method reads each at most once, and accepts a stack as well as a sequence."""

import pytest
from torch.testing import assert_close

import whyformer.methods  # noqa: F401  fills METHODS
from whyformer.methods._registry import METHODS

PER_LAYER = ("attention", "attention_grad", "attention_relevance", "value", "hidden", "hidden_grad")
PER_LAYER += ("projected", "residual", "middle", "update", "norms", "attention_scores")
PER_LAYER += ("direct_attention_grad", "layer_attention_grad", "mean_attention_grad")
by_layer = pytest.mark.parametrize(
    "name",
    sorted(name for name, one in METHODS.items() if set(PER_LAYER) & set(one.needs) and "probe" not in one.needs),
)


@by_layer
def test_reads_each_layer_once(random_capture, run, read_once, name):
    capture = random_capture(layers=3)
    once = capture | {site: read_once(capture[site]) for site in PER_LAYER}
    assert_close(run(name, once), run(name, capture))
    assert any(once[site].read for site in PER_LAYER)


@pytest.mark.parametrize("name", ["raw_attention", "grad_cam", "grads", "partial_lrp", "norm_analysis"])
def test_a_method_of_one_layer_reads_one_layer(random_capture, run, read_once, name):
    capture = random_capture(layers=3)
    once = capture | {site: read_once(capture[site]) for site in PER_LAYER}
    run(name, once)
    assert {layer for site in PER_LAYER for layer in once[site].read} == {2}


@by_layer
def test_leaves_what_it_is_given_as_it_was(random_capture, run, name):
    capture, untouched = random_capture(), random_capture()
    run(name, capture)
    for need in METHODS[name].needs:
        assert_close(capture[need], untouched[need], rtol=0, atol=0)
