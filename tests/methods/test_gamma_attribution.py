"""Gamma attribution: by hand, as whole matrices, and what sets it apart from transformer attribution."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whyformer as why
from whyformer import demo
from whyformer.methods import gamma_attribution

CAT = Path(demo.__file__).parent / "samples" / "cat.jpg"
GRADIENT = torch.tensor([[[1.0, -2.0], [0.0, 1.0]], [[2.0, -1.0], [1.0, 0.0]]]).double().reshape(1, 1, 2, 2, 2)
RELEVANCE = torch.tensor([[[0.5, 1.0], [3.0, 0.2]], [[-1.0, -0.6], [0.4, 5.0]]]).double().reshape(1, 1, 2, 2, 2)


@pytest.mark.parametrize(
    ("gradient", "scores"),
    [
        ("positive", (1.25, 0.0)),  # row 0: (0.5, -) and (-, -), where - is a factor that is negative
        ("signed", (1.25, 0.3)),  # (0.5, -2) and (-2, 0.6): the last product has two negative factors
        ("none", (1.25, 0.5)),  # (0.5, 1) and (0, 0)
    ],
)
def test_two_heads_one_layer_by_hand(cls, gradient, scores):
    expected = torch.tensor([scores], dtype=torch.double)
    assert_close(gamma_attribution(GRADIENT, RELEVANCE, *cls(2), gradient=gradient), expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5), st.integers(0, 99))
def test_as_whole_matrices(random_capture, run, layers, heads, tokens, seed):
    """The definition, one head and one cell at a time."""
    capture = random_capture(layers, heads, tokens, seed=seed)
    product = torch.eye(tokens, dtype=torch.double)
    for grad, relevance in zip(capture["attention_grad"], capture["attention_relevance"], strict=True):
        bar = torch.eye(tokens, dtype=torch.double)
        for head in range(heads):
            for query in range(tokens):
                for key in range(tokens):
                    g, r = float(grad[0, head, query, key]), float(relevance[0, head, query, key])
                    bar[query, key] += max(g, 0) * max(r, 0) / heads
        product = bar @ product
    assert_close(run("gamma_attribution", capture)[0], product[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 5), st.integers(0, 99))
def test_never_more_than_the_signed_product_or_less_than_the_residual(random_capture, run, layers, tokens, seed):
    capture = random_capture(layers, 2, tokens, seed=seed)
    positive, signed = (run("gamma_attribution", capture, gradient=one) for one in ("positive", "signed"))
    assert (positive >= 0).all() and (positive <= signed + 1e-12).all()


def test_the_signed_product_is_transformer_attribution_with_the_gamma_recipe():
    model = why.open("demo/untrained-vit")
    pixels = torch.rand(2, 3, *[model.module.config.image_size] * 2, generator=torch.Generator().manual_seed(0))
    ours = why.explain(model, pixels, "gamma_attribution", gradient="signed")
    theirs = why.explain(model, pixels, "transformer_attribution", recipe="gamma")
    assert_close(ours.scores, theirs.scores)


def test_where_the_mean_of_tokens_is_read_the_weights_of_reading_are_not_part_of_the_map(random_capture, run):
    """r C - r: products of 1e-9 beside a weight of 1/4, which float32 would not hold."""
    capture = random_capture(3, 2, 4, seed=1)
    readout, mask = torch.full((1, 4), 0.25, dtype=torch.double), torch.ones(1, 4, dtype=torch.bool)
    gradient, relevance = ([1e-9 * part for part in capture["attention_grad"]], capture["attention_relevance"])
    row = readout
    for grad, sent in zip(reversed(gradient), reversed(relevance), strict=True):
        row = row + row @ (grad.clamp(min=0) * sent.clamp(min=0)).mean(1)[0]
    found = gamma_attribution(gradient, relevance, readout, mask)
    assert_close(found, row - readout, rtol=1e-6, atol=1e-16)
    single = [[part.float() for part in parts] for parts in (gradient, relevance)]
    assert_close(gamma_attribution(*single, readout.float(), mask), found.float(), rtol=1e-4, atol=0)


def test_rounding_does_not_move_the_map():
    """The paper's rules divide by sums that cancel; on this photo they lose every digit in float32."""
    single, double = (why.open("demo/pets", dtype=dtype) for dtype in (torch.float32, torch.float64))
    maps = [why.explain(model, CAT, "gamma_attribution").scores[0].double() for model in (single, double)]
    assert (maps[0] - maps[1]).abs().max() < 1e-4 * maps[1].abs().max()


def test_a_start_leaves_out_the_layers_below(random_capture, run):
    capture = random_capture(3, 2, 4, seed=1)
    last = {name: capture[name][2:] for name in ("attention_grad", "attention_relevance")}
    assert_close(run("gamma_attribution", capture, start=2), run("gamma_attribution", capture | last))
