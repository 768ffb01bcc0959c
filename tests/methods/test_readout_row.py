"""Row products against whole matrices, and the score of the readout token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods._readout_row import find_readout_token, mask_padding, multiply_row, propagate_row

SCORES = torch.tensor([[4.0, 3.0, 1.0, 9.0]], dtype=torch.double)
READOUT = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.double)
MASK = torch.tensor([[True, True, True, False]])


def test_reads_the_row_of_a_token():
    matrix = torch.arange(9.0).reshape(1, 3, 3)
    assert_close(multiply_row(torch.tensor([[0.0, 1.0, 0.0]]), matrix), matrix[:, 1])


def test_reads_a_mixture_of_rows():
    matrix = torch.tensor([[[1.0, 3.0], [5.0, 7.0]]])
    assert_close(multiply_row(torch.tensor([[0.5, 0.5]]), matrix), torch.tensor([[3.0, 5.0]]))


def test_takes_the_precision_of_the_matrix():
    assert multiply_row(torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 2, dtype=torch.double)).dtype == torch.double
    assert (
        propagate_row(torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 2, dtype=torch.double), normalise=True).dtype
        == torch.double
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.floats(0, 3), st.booleans(), st.integers(0, 99))
def test_a_step_is_the_row_times_the_whole_matrix(tokens, residual, normalise, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(2, tokens, tokens, dtype=torch.double, generator=generator)
    row = torch.rand(2, tokens, dtype=torch.double, generator=generator)
    whole = matrix + residual * torch.eye(tokens, dtype=torch.double)
    if normalise:
        whole = whole / whole.sum(-1, keepdim=True)
    assert_close(
        propagate_row(row, matrix, residual=residual, normalise=normalise),
        torch.stack([row[b] @ whole[b] for b in (0, 1)]),
    )


def test_a_row_of_zeros_stays_zero():
    """Not 0 / 0."""
    matrix = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])
    assert_close(
        propagate_row(torch.tensor([[1.0, 2.0]]), matrix, residual=0.0, normalise=True), torch.tensor([[1.0, 1.0]])
    )


@pytest.mark.parametrize(("own", "expected"), [("keep", 4.0), ("zero", 0.0), ("min", 1.0)])
def test_the_own_cell_by_hand(own, expected):
    """Padding (9) becomes 0 and does not count as the smallest."""
    assert_close(
        mask_padding(SCORES, READOUT, MASK, own), torch.tensor([[expected, 3.0, 1.0, 0.0]], dtype=torch.double)
    )


def test_the_own_cell_may_itself_be_the_smallest():
    scores = torch.tensor([[-2.0, 3.0, 1.0, 0.0]])
    assert_close(mask_padding(scores, READOUT, MASK, "min"), scores)


def test_padding_is_zero_even_where_it_was_not_a_number():
    scores = torch.tensor([[1.0, 2.0, 3.0, torch.nan]])
    assert_close(mask_padding(scores, READOUT, MASK), torch.tensor([[1.0, 2.0, 3.0, 0.0]]))


def test_each_example_has_its_own_cell():
    readout = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert_close(mask_padding(scores, readout, mask, "zero"), torch.tensor([[0.0, 2.0], [3.0, 0.0]]))


def test_a_model_that_pools_has_no_own_cell():
    pooled = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    assert not find_readout_token(pooled).any()
    assert_close(mask_padding(SCORES, pooled, MASK), SCORES * MASK)
    with pytest.raises(MethodError, match=r"own='min' replaces the score .* pools several tokens\. Use own='keep'"):
        mask_padding(SCORES, pooled, MASK, "min")


def test_an_unknown_word_for_the_own_cell_is_refused():
    with pytest.raises(MethodError, match=r"own must be one of 'keep', 'zero', 'min'; got 'bar'\."):
        mask_padding(SCORES, READOUT, MASK, "bar")
