"""Attention rollout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import rollout

ONE_LAYER = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.double).reshape(1, 1, 1, 2, 2)
sizes = given(layers=st.integers(1, 5), heads=st.integers(1, 3), tokens=st.integers(1, 6), seed=st.integers(0, 99))


def test_two_tokens_one_layer_by_hand(cls):
    """A = [[1/4, 3/4], [1, 0]]: row 0 of (A + I) / 2 is (5/8, 3/8)."""
    assert_close(rollout(ONE_LAYER, *cls(2)), torch.tensor([[0.625, 0.375]], dtype=torch.double))


def test_two_tokens_as_printed_by_hand(cls):
    """Row 0 of A + I, not normalised."""
    assert_close(rollout(ONE_LAYER, *cls(2), preset="paper"), torch.tensor([[1.25, 0.75]], dtype=torch.double))


def test_a_double_residual_by_hand(cls):
    """Row 0 of (A + 2 I) / 3 is (9/12, 3/12)."""
    assert_close(rollout(ONE_LAYER, *cls(2), residual=2.0), torch.tensor([[0.75, 0.25]], dtype=torch.double))


def test_agrees_with_every_path_written_slowly(random_capture, run):
    """Sum over all paths of tokens through three layers, weight by weight; the last layer comes first."""
    capture = random_capture(layers=3, tokens=3)
    a = (capture["attention"].mean(2)[:, 0] + torch.eye(3)) / 2
    paths = [sum(a[2][0, i] * a[1][i, j] * a[0][j, k] for i in range(3) for j in range(3)) for k in range(3)]
    assert_close(run("rollout", capture)[0], torch.stack(paths))


@pytest.mark.parametrize(
    ("preset", "first", "normalise", "own"),
    [
        ("abnar", 0, True, "keep"),
        ("paper", 0, False, "keep"),
        ("released", 1, True, "keep"),
        ("released_bert", 0, True, "zero"),
    ],
)
def test_presets_as_whole_matrices(random_capture, run, preset, first, normalise, own):
    capture = random_capture(layers=4, tokens=5)
    product = torch.eye(5, dtype=torch.double)
    for layer in capture["attention"][first:]:
        mixing = layer[0].mean(0) + torch.eye(5)
        product = (mixing / mixing.sum(-1, keepdim=True) if normalise else mixing) @ product
    row = product[0].clone()
    if own == "zero":
        row[0] = 0
    assert_close(run("rollout", capture, preset=preset)[0], row)


def test_a_setting_goes_before_the_preset(random_capture, run):
    capture = random_capture()
    assert_close(run("rollout", capture, preset="released", start=0), run("rollout", capture))
    assert_close(run("rollout", capture, preset="released_bert", own="keep"), run("rollout", capture))
    assert_close(run("rollout", capture, normalise=False), run("rollout", capture, preset="paper"))


@settings(max_examples=25, deadline=None)
@sizes
def test_is_a_distribution_over_tokens(random_capture, run, layers, heads, tokens, seed):
    scores = run("rollout", random_capture(layers, heads, tokens, seed=seed))
    assert (scores >= 0).all()
    assert_close(scores.sum(-1), torch.ones(1, dtype=torch.double))


@settings(max_examples=25, deadline=None)
@sizes
def test_normalising_divides_by_two_for_every_layer(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    assert_close(run("rollout", capture), run("rollout", capture, preset="paper") / 2**layers)


def test_pooling_is_the_mean_of_the_rows(random_capture, run):
    capture = random_capture(tokens=3)
    single = torch.eye(3, dtype=torch.double)[:, None]
    rows = [run("rollout", capture | {"readout": readout}) for readout in single]
    assert_close(run("rollout", capture | {"readout": single.mean(0)}), sum(rows) / 3)


def test_without_a_residual_it_is_the_product_of_attention(random_capture, run):
    capture = random_capture(layers=2)
    first, last = capture["attention"].mean(2)[:, 0]
    assert_close(run("rollout", capture, residual=0)[0], last[0] @ first)


def test_a_large_residual_points_at_the_readout(random_capture, run):
    capture = random_capture()
    assert_close(run("rollout", capture, residual=1e12), capture["readout"])


def test_the_last_layer_alone_is_raw_attention_and_the_token_itself(random_capture, run):
    capture = random_capture()
    assert_close(run("rollout", capture, start=-1), (run("raw_attention", capture) + capture["readout"]) / 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"preset": "foo"},
            r"preset must be one of 'abnar', 'paper', 'released', 'released_bert'; got 'foo'\.",
        ),
        ({"own": "bar"}, r"own must be one of .*; got 'bar'"),
        ({"start": 3}, r"start must be between .* for this model, got 3"),
        ({"normalise": "yes"}, r"normalise must be one of True, False; got 'yes'"),
        ({"residual": -0.5}, r"residual must be a finite number >= 0 .*, got -0\.5"),
        ({"residual": float("nan")}, r"residual must be a finite number >= 0 .*, got nan"),
        ({"residual": "half"}, r"residual must be a finite number >= 0 .*, got 'half'"),
    ],
)
def test_refuses_what_it_does_not_have(random_capture, run, wrong, message):
    with pytest.raises(MethodError, match=message):
        run("rollout", random_capture(layers=3), **wrong)


def test_the_released_form_needs_a_second_layer(random_capture, run):
    with pytest.raises(MethodError, match=r"start must be between .* for this model, got 1"):
        run("rollout", random_capture(layers=1), preset="released")
