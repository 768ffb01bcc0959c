"""Saliency."""

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods import saliency

GRADIENT = torch.tensor([[[3.0, -4.0], [0.0, 1.0]]])


@pytest.mark.parametrize(("reduce", "expected"), [("max", [4.0, 1.0]), ("l1", [7.0, 1.0]), ("l2", [5.0, 1.0])])
def test_by_hand(reduce, expected):
    assert_close(saliency(GRADIENT, reduce=reduce), torch.tensor([expected]))


def test_the_paper_is_the_default():
    assert_close(saliency(GRADIENT), saliency(GRADIENT, reduce="max"))


@pytest.mark.parametrize("reduce", ["max", "l1", "l2"])
def test_does_not_see_the_sign_of_the_gradient(random_capture, run, reduce):
    capture = random_capture()
    turned = capture | {"input_grad": -capture["input_grad"]}
    assert_close(run("saliency", turned, reduce=reduce), run("saliency", capture, reduce=reduce))
    assert (run("saliency", capture, reduce=reduce) > 0).all()


def test_pixels_keep_their_place():
    gradient = torch.zeros(1, 2, 3, 3)
    gradient[0, 1, 2, 0] = -5.0
    expected = torch.zeros(1, 2, 3)
    expected[0, 1, 2] = 5.0
    assert_close(saliency(gradient), expected)


def test_refuses_another_reduction():
    with pytest.raises(MethodError, match=r"reduce must be one of 'max', 'l1', 'l2'; got 'mean'\."):
        saliency(GRADIENT, reduce="mean")


def test_at_a_block_by_hand():
    """Boundary 1 of two, the second token being padding."""
    grads = [torch.zeros(1, 2, 2), torch.tensor([[[3.0, -4.0], [9.0, 9.0]]])]
    mask = torch.tensor([[True, False]])
    for reduce, expected in (("max", 4.0), ("l1", 7.0), ("l2", 5.0)):
        found = saliency(GRADIENT, grads, mask, reduce=reduce, at=1)
        assert_close(found, torch.tensor([[expected, 0.0]]))


def test_at_a_block_of_a_model_by_finite_differences():
    """The readout token behind the last block: how the score moves with each of its channels."""
    it = animal("bert")
    found = why.explain(why.open(it.module), it.inputs, "saliency", target=1, at=-1).scores[:, 0]
    head, pooler = it.module.classifier, it.module.bert.pooler
    with torch.no_grad():
        state = it.module.bert(**it.inputs).last_hidden_state[:, :1]
        slopes = []
        for channel in range(state.size(-1)):
            step = torch.zeros_like(state)
            step[..., channel] = 1e-5
            up, down = (head(pooler(state + sign * step))[:, 1] for sign in (1, -1))
            slopes.append((up - down) / 2e-5)
    assert_close(found, torch.stack(slopes).abs().amax(0), rtol=1e-6, atol=1e-9)
