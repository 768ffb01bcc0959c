"""What the methods of the relevance family do with relevance that has arrived. Their rules have tests of their own."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.errors import MethodError
from whyformer.methods import attnlrp, cp_lrp, libragrad, lrp_epsilon, lrp_gamma, pa_lrp

TOKENS = torch.tensor([[[0.5, -0.25], [0.75, 0.0], [-1.0, 1.0]]], dtype=torch.double)
ALL = torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize("method", [attnlrp, cp_lrp, lrp_epsilon, lrp_gamma])
def test_channels_are_summed(method):
    assert_close(method(TOKENS), torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.double))
    pixels = torch.arange(24.0, dtype=torch.double).reshape(1, 2, 4, 3)
    assert_close(method(pixels), torch.tensor([[[3.0, 12, 21, 30], [39, 48, 57, 66]]], dtype=torch.double))


def test_libragrad_adds_up_what_enters_each_block():
    """Three boundaries of two blocks: the last, what leaves them, does not count."""
    boundaries = [TOKENS, 10 * TOKENS, 100 * TOKENS]
    plain, hybrid = (False, False), (True, False)
    assert_close(libragrad(boundaries, plain, ALL), 11 * TOKENS.sum(-1))
    assert_close(libragrad(boundaries, plain, ALL, at="input"), TOKENS.sum(-1))
    assert_close(libragrad(boundaries, hybrid, ALL), TOKENS.sum(-1))
    assert_close(libragrad(boundaries, hybrid, ALL, at="blocks"), 11 * TOKENS.sum(-1))
    with pytest.raises(MethodError, match=r"at must be one of .*; got 'block'\. Did you mean 'blocks'\?"):
        libragrad(boundaries, plain, ALL, at="block")


def test_pa_lrp_adds_positions_by_their_magnitude():
    token = torch.tensor([[1.0, -2.0, 3.0]])
    places = [torch.tensor([[[0.5, -0.5, 0.0]]]), torch.tensor([[[-0.25, -0.25, 1.0]]])]
    assert_close(pa_lrp(token, places, ALL), torch.tensor([[1.75, -1.25, 4.0]]))
    assert_close(pa_lrp(token, places, ALL, part="position"), torch.tensor([[0.75, 0.75, 1.0]]))
    assert_close(pa_lrp(token, places, ALL, part="token"), token)
    assert_close(pa_lrp(token, [], ALL), token)
    with pytest.raises(MethodError, match=r"part must be one of .*; got 'words'"):
        pa_lrp(token, places, ALL, part="words")


def test_pa_lrp_of_queries_and_keys_that_disagree():
    """One table of positions, used twice: 3 and -1 are 2 together, and 4 one by one."""
    token, table = torch.zeros(1, 2), torch.tensor([[[3.0, 1.0]], [[-1.0, 2.0]]])
    both = torch.ones(1, 2, dtype=torch.bool)
    assert_close(pa_lrp(token, [table], both), torch.tensor([[2.0, 3.0]]))
    assert_close(pa_lrp(token, [table], both, preset="released"), torch.tensor([[2.0, 3.0]]))
    assert_close(pa_lrp(token, [table], both, preset="separate"), torch.tensor([[4.0, 3.0]]))
    with pytest.raises(MethodError, match=r"preset must be one of .*; got 'paper'"):
        pa_lrp(token, [table], both, preset="paper")
