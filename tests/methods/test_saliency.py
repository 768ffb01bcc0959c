"""Saliency."""

import pytest
import torch
from torch.testing import assert_close

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
    with pytest.raises(MethodError, match=r"reduce='mean' is not a choice\. There are: 'max', 'l1', 'l2'\."):
        saliency(GRADIENT, reduce="mean")
