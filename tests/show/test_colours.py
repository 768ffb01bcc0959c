"""Colours mean the same everywhere: white is nothing, warm speaks for, cool against, and text on them can be read."""

import pytest
import torch

from whyformer.show.colours import AGAINST, FOR, UNSIGNED, WHITE, contrast, ink, limits, luminance, paint

STEPS = torch.linspace(-1, 1, 101, dtype=torch.double)


def test_signed_scores_by_hand():
    """Blue at the lower end, white at zero, orange at the upper; beyond the ends nothing changes."""
    colours = paint(torch.tensor([-9.0, -2.0, 0.0, 2.0, 9.0]), (-2.0, 2.0), signed=True)
    assert [tuple(c) for c in colours.tolist()] == [AGAINST, AGAINST, WHITE, FOR, FOR]


def test_unsigned_scores_by_hand():
    colours = paint(torch.tensor([[0.0, 1.0], [2.0, 5.0]]), (0.0, 2.0), signed=False)
    assert colours.shape == (2, 2, 3)
    assert [tuple(c) for c in colours.flatten(0, 1).tolist()] == [*UNSIGNED, UNSIGNED[-1]]


def test_limits_of_signed_scores_are_equal_about_zero():
    assert limits(torch.tensor([-0.5, 2.0]), signed=True) == (-2.0, 2.0)
    assert limits(torch.tensor([-3.0, -1.0]), signed=True) == (-3.0, 3.0)


def test_limits_of_unsigned_scores_are_their_own_or_reach_down_to_the_floor():
    assert limits(torch.tensor([1.0, 3.0]), signed=False) == (1.0, 3.0)
    assert limits(torch.tensor([1.0, 3.0]), signed=False, floor=0.0) == (0.0, 3.0)


@pytest.mark.parametrize("signed", [True, False])
def test_scores_that_are_all_the_same_are_white_unless_they_have_a_sign(signed):
    same = torch.full((3,), 4.0)
    painted = paint(same, limits(same, signed=signed), signed=signed)
    assert tuple(painted[0].tolist()) == (FOR if signed else WHITE)
    assert tuple(paint(same * 0, limits(same * 0, signed=signed), signed=signed)[0].tolist()) == WHITE


def test_nothing_has_no_limits():
    assert limits(torch.zeros(0), signed=True) == (0.0, 0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_text_can_be_read_on_every_colour(signed):
    for colour in paint(STEPS, (-1.0, 1.0), signed=signed).tolist():
        assert contrast(ink(tuple(colour)), tuple(colour)) >= 4.5


def test_more_is_darker():
    lightness = [luminance(tuple(c)) for c in paint(STEPS, (-1.0, 1.0), signed=False).tolist()]
    assert lightness == sorted(lightness, reverse=True)


def test_contrast_of_black_on_white_is_21():
    assert contrast((0, 0, 0), WHITE) == pytest.approx(21)
