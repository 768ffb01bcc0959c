"""Colours mean the same everywhere: white is nothing, warm speaks for, cool against, and text on them can be read."""

import pytest
import torch

from whyformer.show.colours import (
    AGAINST_COLOUR,
    FOR_COLOUR,
    UNSIGNED_STOPS,
    WHITE,
    choose_ink,
    contrast_ratio,
    find_limits,
    luminance,
    paint,
)

STEPS = torch.linspace(-1, 1, 101, dtype=torch.double)


def test_signed_scores_by_hand():
    """Blue at the lower end, white at zero, orange at the upper; beyond the ends nothing changes."""
    colours = paint(torch.tensor([-9.0, -2.0, 0.0, 2.0, 9.0]), (-2.0, 2.0), signed=True)
    assert [tuple(c) for c in colours.tolist()] == [AGAINST_COLOUR, AGAINST_COLOUR, WHITE, FOR_COLOUR, FOR_COLOUR]


def test_unsigned_scores_by_hand():
    colours = paint(torch.tensor([[0.0, 1.0], [2.0, 5.0]]), (0.0, 2.0), signed=False)
    assert colours.shape == (2, 2, 3)
    assert [tuple(c) for c in colours.flatten(0, 1).tolist()] == [*UNSIGNED_STOPS, UNSIGNED_STOPS[-1]]


def test_limits_of_signed_scores_are_equal_about_zero():
    assert find_limits(torch.tensor([-0.5, 2.0]), signed=True) == (-2.0, 2.0)
    assert find_limits(torch.tensor([-3.0, -1.0]), signed=True) == (-3.0, 3.0)


def test_limits_of_unsigned_scores_are_their_own_or_reach_down_to_the_floor():
    assert find_limits(torch.tensor([1.0, 3.0]), signed=False) == (1.0, 3.0)
    assert find_limits(torch.tensor([1.0, 3.0]), signed=False, floor=0.0) == (0.0, 3.0)


@pytest.mark.parametrize("signed", [True, False])
def test_scores_that_are_all_the_same_are_white_unless_they_have_a_sign(signed):
    same = torch.full((3,), 4.0)
    painted = paint(same, find_limits(same, signed=signed), signed=signed)
    assert tuple(painted[0].tolist()) == (FOR_COLOUR if signed else WHITE)
    assert tuple(paint(same * 0, find_limits(same * 0, signed=signed), signed=signed)[0].tolist()) == WHITE


def test_nothing_has_no_limits():
    assert find_limits(torch.zeros(0), signed=True) == (0.0, 0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_text_can_be_read_on_every_colour(signed):
    for colour in paint(STEPS, (-1.0, 1.0), signed=signed).tolist():
        assert contrast_ratio(choose_ink(tuple(colour)), tuple(colour)) >= 4.5


def test_more_is_darker():
    lightness = [luminance(tuple(c)) for c in paint(STEPS, (-1.0, 1.0), signed=False).tolist()]
    assert lightness == sorted(lightness, reverse=True)


def test_contrast_of_black_on_white_is_21():
    assert contrast_ratio((0, 0, 0), WHITE) == pytest.approx(21)
