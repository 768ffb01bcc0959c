"""CAT and AttCAT."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import attcat, cat

TWO_HEADS = torch.tensor(
    [
        [[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]],
        [[0.2, 0.6, 0.2], [0.3, 0.3, 0.4], [0.7, 0.1, 0.2]],
    ],
    dtype=torch.double,
)[None]
# One channel with gradient 1, so that hidden states are class activations; the last boundary is not read.
HIDDEN = [torch.tensor([0.2, -0.5, 1.0], dtype=torch.double).reshape(1, 3, 1), torch.zeros(1, 3, 1, dtype=torch.double)]
ONES = [torch.ones(1, 3, 1, dtype=torch.double)] * 2


@pytest.mark.parametrize(
    ("attention_as", "expected"),
    [
        ("column_mean", [0.0683333333, -0.1958333333, 0.2666666667]),  # measured on the definition of the released code
        ("matrix_vector", [0.045, 0.015, 0.3575]),
        ("cls_row", [0.07, -0.225, 0.2]),  # row 0 of the head mean is (0.35, 0.45, 0.2)
    ],
)
def test_golden_numbers(cls, attention_as, expected):
    scores = attcat([TWO_HEADS], HIDDEN, ONES, (), *cls(3), attention_as=attention_as)
    assert_close(scores, torch.tensor([expected], dtype=torch.double), atol=1e-9, rtol=0)


def test_the_released_definition_is_the_default(cls):
    assert_close(
        attcat([TWO_HEADS], HIDDEN, ONES, (), *cls(3)),
        attcat([TWO_HEADS], HIDDEN, ONES, (), *cls(3), attention_as="column_mean"),
    )


def test_cat_of_two_layers_by_hand(cls):
    """Token 0: 1 * 3 + 2 * (-1) = 1 at the first boundary, 2 * 5 + 0 at the second; the third is the output."""
    hidden = [torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[2.0, 7.0]]]), torch.tensor([[[1.0, 1.0]]])]
    grad = [torch.tensor([[[3.0, -1.0]]]), torch.tensor([[[5.0, 0.0]]]), torch.tensor([[[-4.0, 0.0]]])]
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert_close(cat(hidden, grad, (), mask), torch.tensor([[11.0]]))
    assert_close(cat(hidden, grad, (), mask, at="output"), torch.tensor([[6.0]]))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99), st.sampled_from(["input", "output"])
)
def test_attcat_written_slowly(random_capture, run, layers, heads, tokens, seed, at):
    capture = random_capture(layers, heads, tokens, seed=seed)
    shift = 0 if at == "input" else 1
    scores = torch.zeros(1, tokens, dtype=torch.double)
    for layer in range(layers):
        h, g = capture["hidden"][layer + shift, 0], capture["hidden_grad"][layer + shift, 0]
        for token in range(tokens):
            received = [capture["attention"][layer, 0, head, i, token] for head in range(heads) for i in range(tokens)]
            scores[0, token] += sum(received) / len(received) * sum(h[token] * g[token])
    assert_close(run("attcat", capture, at=at), scores)


def test_equal_attention_makes_attcat_a_scaled_cat(random_capture, run):
    capture = random_capture(tokens=4)
    capture["attention"] = torch.full_like(capture["attention"], 0.25)
    for at in ("input", "output"):
        for attention_as in ("column_mean", "cls_row"):
            assert_close(run("attcat", capture, at=at, attention_as=attention_as), run("cat", capture, at=at) / 4)


def test_each_token_attending_to_itself_makes_attcat_cat(random_capture, run):
    capture = random_capture(tokens=4)
    capture["attention"] = torch.eye(4, dtype=torch.double).expand_as(capture["attention"])
    assert_close(run("attcat", capture, attention_as="matrix_vector"), run("cat", capture))


def test_the_other_class_of_two_gets_the_opposite(random_capture, run):
    """Signed: turning the gradient around turns the scores around."""
    capture = random_capture()
    turned = capture | {"hidden_grad": -capture["hidden_grad"]}
    for name in ("cat", "attcat"):
        assert_close(run(name, turned), -run(name, capture))
        assert (run(name, capture) < 0).any()


def test_the_column_mean_is_exact_in_double_precision(random_capture, run):
    """1/3 in single precision would show at 1e-8."""
    capture = random_capture(tokens=3)
    received = capture["attention"].mean((2, 3))
    expected = (received * (capture["hidden"] * capture["hidden_grad"]).sum(-1)[:-1]).sum(0)
    assert_close(run("attcat", capture), expected, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("name", ["cat", "attcat"])
def test_refuses_another_place(random_capture, run, name):
    with pytest.raises(MethodError, match=r"at must be one of 'input', 'output'; got 'middle'\."):
        run(name, random_capture(), at="middle")


def test_refuses_another_use_of_attention(random_capture, run):
    message = r"attention_as must be one of 'column_mean', 'cls_row', 'matrix_vector'; got 'row'\."
    with pytest.raises(MethodError, match=message):
        run("attcat", random_capture(), attention_as="row")
