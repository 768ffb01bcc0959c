"""Transformer attribution, its presets and its ablations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import transformer_attribution

GRADIENT = torch.tensor([[[1.0, -2.0], [0.0, 1.0]], [[2.0, 1.0], [1.0, 0.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)
RELEVANCE = torch.tensor([[[0.5, 1.0], [3.0, 0.2]], [[-1.0, 0.6], [0.4, 5.0]]], dtype=torch.double).reshape(
    1, 1, 2, 2, 2
)


def double(*numbers):
    return torch.tensor([numbers], dtype=torch.double)


def test_two_heads_one_layer_by_hand(cls):
    """Products in row 0: (0.5, -2) and (-2, 0.6); cut off head by head, the mean is (0.25, 0.3); plus the identity."""
    assert_close(transformer_attribution(GRADIENT, RELEVANCE, *cls(2)), double(1.25, 0.3))


def test_two_equal_layers_by_hand(cls):
    """M = [[0.25, 0.3], [0.2, 0.1]] in both: row 0 of (I + M)^2 is (1.25^2 + 0.3 * 0.2, 1.25 * 0.3 + 0.3 * 1.1)."""
    twice = [GRADIENT[0], GRADIENT[0]], [RELEVANCE[0], RELEVANCE[0]]
    assert_close(transformer_attribution(*twice, *cls(2)), double(1.6225, 0.705))


def test_ablations_of_one_layer_by_hand(cls):
    """Without the gradient row 0 is the mean of (0.5, 1) and (0, 0.6); of one block there is no identity."""
    ablated = {
        name: transformer_attribution(GRADIENT, RELEVANCE, *cls(2), ablation=name)
        for name in ("no_gradient", "last_block")
    }
    assert_close(ablated["no_gradient"], double(1.25, 0.8))
    assert_close(ablated["last_block"], double(0.25, 0.3))


def whole_matrices(capture, first=0, normalise=False, gradient=True):
    """The product as the paper writes it, last block on the left, one example, head by head."""
    tokens = capture["mask"].shape[-1]
    product = torch.eye(tokens, dtype=torch.double)
    for grad, relevance in list(zip(capture["attention_grad"], capture["attention_relevance"], strict=True))[first:]:
        heads = [(g * r if gradient else r).clamp(min=0) for g, r in zip(grad[0], relevance[0], strict=True)]
        bar = torch.eye(tokens, dtype=torch.double) + sum(heads) / len(heads)
        product = (bar / bar.sum(-1, keepdim=True) if normalise else bar) @ product
    return product


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 5), st.integers(0, 99))
def test_presets_as_whole_matrices(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    assert_close(run("transformer_attribution", capture)[0], whole_matrices(capture)[0])
    vit = run("transformer_attribution", capture, preset="released_vit")
    assert_close(vit[0], whole_matrices(capture, first=1)[0])
    bert = whole_matrices(capture, first=layers - 1, normalise=True)[0]
    bert[0] = bert.min()
    assert_close(run("transformer_attribution", capture, preset="released_bert")[0], bert)


def test_normalised_over_all_layers_as_whole_matrices(random_capture, run):
    """Where rows do not sum to one, normalising changes more than the scale."""
    capture = random_capture(layers=3)
    scores = run("transformer_attribution", capture, preset="released_bert", start=0, own="keep")
    assert_close(scores[0], whole_matrices(capture, normalise=True)[0])
    assert_close(scores.sum(), torch.tensor(1.0, dtype=torch.double))
    plain = run("transformer_attribution", capture)
    assert not torch.allclose(scores, plain / plain.sum())


def test_without_the_gradient_as_whole_matrices(random_capture, run):
    capture = random_capture(layers=3)
    for first, preset in [(0, "paper"), (1, "released_vit")]:
        scores = run("transformer_attribution", capture, preset=preset, ablation="no_gradient")
        assert_close(scores[0], whole_matrices(capture, first, gradient=False)[0])


def test_without_the_gradient_none_is_read(random_capture, run):
    capture = random_capture()
    capture["attention_grad"] = torch.full_like(capture["attention_grad"], torch.nan)
    assert run("transformer_attribution", capture, ablation="no_gradient").isfinite().all()


@pytest.mark.parametrize(("ablation", "block"), [("last_block", 3), ("block_1", 1)])
def test_one_block_is_its_row_without_the_identity(random_capture, run, ablation, block):
    capture = random_capture(layers=4)
    products = capture["attention_grad"][block, 0] * capture["attention_relevance"][block, 0]
    assert_close(run("transformer_attribution", capture, ablation=ablation)[0], products.clamp(min=0).mean(0)[0])


def test_one_block_keeps_the_own_cell_of_its_preset(random_capture, run):
    capture = random_capture()
    plain = run("transformer_attribution", capture, ablation="last_block")
    bert = run("transformer_attribution", capture, ablation="last_block", preset="released_bert")
    assert_close(bert[0, 0], plain.min())
    assert_close(bert[:, 1:], plain[:, 1:])


def test_a_setting_goes_before_the_preset(random_capture, run):
    capture = random_capture()
    paper = run("transformer_attribution", capture)
    assert_close(run("transformer_attribution", capture, preset="released_vit", start=0), paper)
    changed = run("transformer_attribution", capture, preset="released_bert", start=0, normalise=False, own="keep")
    assert_close(changed, paper)


def test_only_what_speaks_for_the_class_adds_up(random_capture, run):
    """Gradient and relevance of opposite signs everywhere: nothing but the identity is left."""
    capture = random_capture()
    capture["attention_grad"] = -capture["attention_relevance"]
    assert_close(run("transformer_attribution", capture), capture["readout"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"preset": "released"},
            r"preset must be one of 'paper', 'released_vit', 'released_bert'; got 'released'\.",
        ),
        ({"own": "bar"}, r"own must be one of .*; got 'bar'"),
        ({"start": 9}, r"start must be between .* for this model, got 9"),
        ({"normalise": "no"}, r"normalise must be one of .*; got 'no'"),
        (
            {"ablation": "block_2"},
            r"ablation must be one of None, 'no_grad.*; got 'block_2'\. Did you mean 'block_1'\?",
        ),
        (
            {"ablation": "block_1", "start": 0},
            r"start=0 cannot be combined with .*'block_1', which uses a single block",
        ),
        (
            {"ablation": "last_block", "normalise": False},
            r"normalise=False cannot be combined with .*'last_block'",
        ),
    ],
)
def test_refuses_what_it_does_not_have(random_capture, run, wrong, message):
    with pytest.raises(MethodError, match=message):
        run("transformer_attribution", random_capture(layers=3), **wrong)


def test_block_1_needs_a_second_block(random_capture, run):
    with pytest.raises(
        MethodError, match=r"ablation='block_1' uses the second block from the input, but this model has 1 block\."
    ):
        run("transformer_attribution", random_capture(layers=1), ablation="block_1")
