"""The rules for two sequences: by hand, against a slow version of the released procedure, and where that one fails."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.methods._encoder_decoder import class_attention, combine_streams, normalise_relevancies


def matrix(*rows):
    return torch.tensor([rows], dtype=torch.double)


def noise(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def test_rule_5_by_hand():
    """Two heads of one cell: (2 * 3)+ = 6 and (-1 * 4)+ = 0; their mean is 3."""
    attention = torch.tensor([[[[3.0]], [[4.0]]]])
    grad = torch.tensor([[[[2.0]], [[-1.0]]]])
    assert_close(class_attention(attention, grad), torch.tensor([[[3.0]]]))


def test_self_attention_by_hand():
    """R = I: one layer adds its own matrix; a second one multiplies: (I + A)(I + A)."""
    a, across = matrix([0.0, 1.0], [0.0, 0.0]), matrix([0.0], [0.0])
    assert_close(combine_streams([], [(a, across)])[0], matrix([1.0, 1.0], [0.0, 1.0]))
    assert_close(combine_streams([], [(a, across), (a, across)])[0], matrix([1.0, 2.0], [0.0, 1.0]))


def test_self_attention_takes_along_what_was_gathered_from_the_other_sequence():
    a, across, nothing = matrix([0.0, 0.5], [0.0, 0.0]), matrix([1.0], [4.0]), torch.zeros(1, 2, 2).double()
    _, sq = combine_streams([], [(nothing, across), (a, torch.zeros_like(across))])
    assert_close(sq, matrix([3.0], [4.0]))  # 1 + 0.5 * 4


def test_normalising_by_hand():
    """R - I = [[0, 3], [1, 1]]: rows become [0, 1] and [1/2, 1/2], plus I."""
    assert_close(normalise_relevancies(matrix([1.0, 3.0], [1.0, 2.0])), matrix([1.0, 1.0], [0.5, 1.5]))


def test_normalising_nothing_is_nothing():
    """The released code divides 0 by 0 here."""
    assert_close(normalise_relevancies(matrix([1.0, 0.0], [2.0, 1.0])), matrix([1.0, 0.0], [1.0, 1.0]))


def test_cross_attention_by_hand():
    """Before any self-attention both normalised matrices are I: R_sq is the attention itself."""
    across = matrix([0.2, 0.8], [0.6, 0.4])
    ss, sq = combine_streams([], [(torch.zeros(1, 2, 2).double(), across)])
    assert_close(sq, across)
    assert_close(ss, matrix([1.0, 0.0], [0.0, 1.0]))


def slowly(encoder, decoder):
    """The procedure for DETR, entry by entry for one example."""
    n, m = decoder[0][1].shape[1:]
    r_ii, r_qq, r_qi = torch.eye(m).double(), torch.eye(n).double(), torch.zeros(n, m).double()
    for a in encoder:
        r_ii = r_ii + a[0] @ r_ii
    for own, across in decoder:
        r_qq, r_qi = r_qq + own[0] @ r_qq, r_qi + own[0] @ r_qi
        bars = []
        for r in (r_qq, r_ii):
            bar = torch.eye(len(r)).double()
            for row in range(len(r)):
                hat = r[row] - torch.eye(len(r))[row]
                if hat.sum() != 0:
                    bar[row] += hat / hat.sum()
            bars.append(bar)
        r_qi = r_qi + bars[0].T @ across[0] @ bars[1]
    return r_qq, r_qi


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_encoder_and_decoder_as_released_written_slowly(layers):
    encoder = [noise(1, 5, 5, seed=seed) for seed in range(layers)]
    decoder = [(noise(1, 3, 3, seed=10 + seed), noise(1, 3, 5, seed=20 + seed)) for seed in range(2)]
    for found, expected in zip(combine_streams(encoder, decoder), slowly(encoder, decoder), strict=True):
        assert_close(found[0], expected)


def test_one_row_without_evidence_does_not_blank_the_others():
    """An object query that attends to nothing for its class: released code loses every row with it."""
    own = noise(1, 3, 3)
    own[0, 1] = 0
    _, sq = combine_streams([noise(1, 4, 4, seed=1)], [(own, noise(1, 3, 4, seed=2))])
    assert sq.isfinite().all()
    assert (sq[0].sum(-1) > 0).all()


def test_a_batch_is_its_examples():
    encoder, decoder = [noise(3, 4, 4)], [(noise(3, 2, 2, seed=1), noise(3, 2, 4, seed=2))]
    together = combine_streams(encoder, decoder)
    for i in range(3):
        alone = combine_streams([a[i : i + 1] for a in encoder], [(o[i : i + 1], c[i : i + 1]) for o, c in decoder])
        for whole, one in zip(together, alone, strict=True):
            assert_close(whole[i : i + 1], one)
