"""Localisation by hand: maps of four patches on masks of four pixels."""

import pytest
import torch
from fake_probe import picture

from whyformer.errors import InputError
from whyformer.metrics import mass_in_mask


def test_mass_by_hand():
    """1 + 2 of 1 + 2 + 3 + 4 lie on the object; without the last pixel it is 3 of 6."""
    e = picture([[1.0, 2.0, 3.0, 4.0]] * 2, 2, 2)
    value = mass_in_mask(e, [[[1, 1], [0, 0]], [[1, 1], [0, -1]]])
    torch.testing.assert_close(value, torch.tensor([0.3, 0.5], dtype=torch.float64), rtol=0, atol=1e-12)


def test_mass_is_undefined_without_an_object_or_positive_mass():
    e = picture([[1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, 0.0, 0.0]], 2, 2)
    assert mass_in_mask(e, [[[0, 0], [0, 0]], [[1, 1], [0, 0]]]).isnan().all()


def test_a_mask_of_something_else_is_refused():
    with pytest.raises(InputError, match="1 masks for 2 pictures"):
        mass_in_mask(picture([[1.0] * 4] * 2, 2, 2), [[[1, 1], [0, 0]]])
    with pytest.raises(InputError, match="with values"):
        mass_in_mask(picture([[1.0] * 4], 2, 2), [[[255, 1], [0, 0]]])
