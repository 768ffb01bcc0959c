"""White is zero, orange is for, blue is against, and text is readable on every colour."""

import pytest
import torch

from whyformer.show.colours import (
    AGAINST_COLOUR,
    FOR_COLOUR,
    UNSIGNED_STOPS,
    WHITE,
    choose_ink,
    compute_contrast,
    compute_luminance,
    find_limits,
    paint_scores,
)

STEPS = torch.linspace(-1, 1, 101, dtype=torch.double)


def test_signed_scores_by_hand():
    """Blue at the lower limit, white at zero, orange at the upper; beyond the limits colours are clipped."""
    colours = paint_scores(torch.tensor([-9.0, -2.0, 0.0, 2.0, 9.0]), (-2.0, 2.0), signed=True)
    assert [tuple(c) for c in colours.tolist()] == [AGAINST_COLOUR, AGAINST_COLOUR, WHITE, FOR_COLOUR, FOR_COLOUR]


def test_unsigned_scores_by_hand():
    colours = paint_scores(torch.tensor([[0.0, 1.0], [2.0, 5.0]]), (0.0, 2.0), signed=False)
    assert colours.shape == (2, 2, 3)
    assert [tuple(c) for c in colours.flatten(0, 1).tolist()] == [*UNSIGNED_STOPS, UNSIGNED_STOPS[-1]]


def test_limits_of_signed_scores_are_symmetric():
    assert find_limits(torch.tensor([-0.5, 2.0]), signed=True) == (-2.0, 2.0)
    assert find_limits(torch.tensor([-3.0, -1.0]), signed=True) == (-3.0, 3.0)


def test_limits_of_unsigned_scores_are_their_range_extended_to_the_floor():
    assert find_limits(torch.tensor([1.0, 3.0]), signed=False) == (1.0, 3.0)
    assert find_limits(torch.tensor([1.0, 3.0]), signed=False, floor=0.0) == (0.0, 3.0)


@pytest.mark.parametrize("signed", [True, False])
def test_constant_scores_are_white_unless_signed(signed):
    same = torch.full((3,), 4.0)
    painted = paint_scores(same, find_limits(same, signed=signed), signed=signed)
    assert tuple(painted[0].tolist()) == (FOR_COLOUR if signed else WHITE)
    assert tuple(paint_scores(same * 0, find_limits(same * 0, signed=signed), signed=signed)[0].tolist()) == WHITE


def test_limits_of_no_scores_are_zero():
    assert find_limits(torch.zeros(0), signed=True) == (0.0, 0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_text_is_readable_on_every_colour(signed):
    for colour in paint_scores(STEPS, (-1.0, 1.0), signed=signed).tolist():
        assert compute_contrast(choose_ink(tuple(colour)), tuple(colour)) >= 4.5


def test_higher_scores_are_darker():
    lightness = [compute_luminance(tuple(c)) for c in paint_scores(STEPS, (-1.0, 1.0), signed=False).tolist()]
    assert lightness == sorted(lightness, reverse=True)


def test_contrast_of_black_on_white_is_21():
    assert compute_contrast((0, 0, 0), WHITE) == pytest.approx(21)
