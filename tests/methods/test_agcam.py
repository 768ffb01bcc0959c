"""AGCAM: the released form, from scores and direct gradients, and the centred one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import planted
from torch.testing import assert_close

import whyformer as why
from whyformer.methods import agcam


def test_one_head_by_hand(cls):
    """Row 0: scores 0 and log 3 have the sigmoids 1/2 and 3/4; gradients 4 and -8, or 4 and 8."""
    scores = torch.tensor([[0.0, 3.0], [1.0, 1.0]], dtype=torch.double)
    scores[0, 1] = scores[0, 1].log()
    scores = scores.reshape(1, 1, 1, 2, 2)
    gradient = torch.tensor([[4.0, -8.0], [9.0, 9.0]], dtype=torch.double).reshape(1, 1, 1, 2, 2)
    assert_close(agcam(scores, gradient, *cls(2)), torch.tensor([[2.0, 0.0]], dtype=torch.double))
    assert_close(agcam(scores, gradient.abs(), *cls(2)), torch.tensor([[2.0, 6.0]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_written_slowly(random_capture, run, layers, heads, tokens, seed):
    capture = random_capture(layers, heads, tokens, seed=seed)
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for layer in range(layers):
        for head in range(heads):
            gradient = capture["direct_attention_grad"][layer, 0, head, 0].clamp(min=0)
            expected += gradient / (1 + torch.exp(-capture["attention_scores"][layer, 0, head, 0]))
    assert_close(run("agcam", capture), expected)


def test_what_a_mask_excludes_gets_nothing(random_capture, run):
    capture = random_capture(tokens=3)
    capture["attention_scores"][..., 2] = -torch.inf
    scores = run("agcam", capture)
    assert scores[0, 2] == 0 and scores[0, :2].sum() > 0


# --- preset="centred" -------------------------------------------------------------------------------------------------


def test_one_head_centred_by_hand(cls):
    """Row 0: twice the attention 1/2 and 3/2 times the average, so sigmoids 1/3 and 3/5; gradients 3 and -4."""
    attention = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.double).reshape(1, 1, 1, 2, 2)
    gradient = torch.tensor([[3.0, -4.0], [9.0, 9.0]], dtype=torch.double).reshape(1, 1, 1, 2, 2)
    other = torch.zeros_like(attention)  # scores and direct gradients play no part
    found = agcam(other, other, *cls(2), attention, gradient, preset="centred")
    assert_close(found, torch.tensor([[1.0, 0.0]], dtype=torch.double))
    found = agcam(other, other, *cls(2), attention, gradient.abs(), preset="centred")
    assert_close(found, torch.tensor([[1.0, 2.4]], dtype=torch.double))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_written_slowly_from_scores_before_the_softmax(random_capture, run, layers, heads, tokens, seed):
    """Scores whose exponentials have the mean 1 are those in which equal attention has score 0."""
    capture = random_capture(layers, heads, tokens, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(layers, 1, heads, tokens, tokens, dtype=torch.double, generator=generator)
    before = before - before.exp().mean(-1, keepdim=True).log()
    capture["attention"] = before.softmax(-1)
    expected = torch.zeros(1, tokens, dtype=torch.double)
    for layer in range(layers):
        for head in range(heads):
            gradient = capture["attention_grad"][layer, 0, head, 0].clamp(min=0)
            expected += gradient * before[layer, 0, head, 0].sigmoid()
    assert_close(run("agcam", capture, preset="centred"), expected)


def test_a_constant_in_a_row_of_the_scores_changes_nothing(random_capture, run):
    capture = random_capture()
    moved = capture["attention"].log() + 3.0
    assert_close(
        run("agcam", capture | {"attention": moved.softmax(-1)}, preset="centred"),
        run("agcam", capture, preset="centred"),
    )


def test_equal_attention_leaves_half_the_positive_gradient(random_capture, run):
    capture = random_capture(tokens=4)
    capture["attention"] = torch.full_like(capture["attention"], 0.25)
    expected = capture["attention_grad"][:, :, :, 0].clamp(min=0).sum((0, 2)) / 2
    assert_close(run("agcam", capture, preset="centred"), expected)


def test_what_cannot_be_attended_to_does_not_count(random_capture, run):
    """Neither as a token nor in the number of tokens."""
    capture = random_capture(tokens=3)
    capture["attention"] = torch.tensor([0.25, 0.75, 0.0], dtype=torch.double).expand_as(capture["attention"])
    expected = capture["attention_grad"][:, :, :, 0].clamp(min=0).sum((0, 2)) * torch.tensor([1 / 3, 0.6, 0.0])
    assert_close(run("agcam", capture, preset="centred"), expected.double())


def test_the_own_cell(random_capture, run):
    scores = run("agcam", random_capture(), own="zero")
    assert scores[0, 0] == 0
    assert (scores[0, 1:] > 0).any()


@pytest.mark.parametrize("name", ["lookup", "minus", "spot", "recall"])
def test_centred_finds_what_decides_where_attention_is_paid_to_it(name):
    """The scores of these models are far from 0, where the sigmoid of the released form saturates."""
    it = planted(name)
    e = why.explain(it.model, it.inputs, "agcam", preset="centred")
    assert it.hits(e).double().mean() >= 0.99
