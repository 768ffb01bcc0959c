"""Scores in bytes: rounding, what is dropped, and how much it takes."""

from base64 import b64decode

import numpy as np
import pytest
import torch

from whyformer.show.prompt_matrix import pack_rows


def unpack(packed):
    """The rows again, as prompt_page.js reads them."""
    rows = np.zeros((len(packed.values), packed.columns))
    levels = {1: 127, 2: 32767}[packed.width]
    for r, text in enumerate(packed.values):
        steps = np.frombuffer(b64decode(text), f"<i{packed.width}")
        columns = np.arange(packed.columns)
        if packed.places is not None:
            columns = np.frombuffer(b64decode(packed.places[r]), f"<u{packed.place_width}")
        rows[r, columns] = steps * (packed.scales[r] / levels)
    return rows


def test_a_row_by_hand():
    packed = pack_rows(torch.tensor([[0.0, 2.0, -1.0]]), width=1, budget=100)
    assert list(b64decode(packed.values[0])) == [0, 127, 256 - 64]
    assert packed.scales == [2.0] and packed.places is None and packed.kept == 3


@pytest.mark.parametrize("width", [1, 2])
def test_rounding_is_at_most_half_a_step(width):
    rows = torch.randn(5, 300, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    error = np.abs(unpack(pack_rows(rows, width=width, budget=10**6)) - rows.numpy()).max(1)
    assert (error <= rows.abs().amax(1).numpy() / {1: 127, 2: 32767}[width] / 2 * 1.0001).all()


def test_a_matrix_beyond_its_budget_keeps_the_largest_of_each_row():
    rows = torch.randn(4, 200, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    packed = pack_rows(rows, width=1, budget=4 * 3 * 20)
    assert packed.kept == 20
    for row, kept in zip(rows.numpy(), unpack(packed), strict=True):
        largest = np.argsort(-np.abs(row))[:20]
        assert set(np.flatnonzero(kept)) <= set(largest) and len(np.flatnonzero(kept)) > 15
    assert sum(len(b64decode(text)) for text in packed.values + packed.places) <= 4 * 3 * 20


def test_of_equal_scores_the_first_are_kept():
    packed = pack_rows(torch.tensor([[1.0, 3.0] + [1.0] * 7]), width=1, budget=3 * 2)
    assert np.flatnonzero(unpack(packed)[0]).tolist() == [0, 1]


def test_long_rows_have_wide_places():
    row = torch.zeros(1, 70_000)
    row[0, 69_999] = 1.0
    packed = pack_rows(row, width=1, budget=50)
    assert packed.place_width == 4 and unpack(packed)[0, 69_999] == 1.0


def test_zeros_nan_and_no_rows():
    assert unpack(pack_rows(torch.zeros(1, 3), width=1, budget=9)).tolist() == [[0.0, 0.0, 0.0]]
    assert unpack(pack_rows(torch.tensor([[float("nan"), 1.0]]), width=1, budget=9)).tolist() == [[0.0, 1.0]]
    assert unpack(pack_rows(torch.zeros(0, 3), width=1, budget=9)).shape == (0, 3)
