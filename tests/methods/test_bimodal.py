"""The rules for two sequences: by hand, against a slow version of the released procedure, and where that one fails."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.methods._bimodal import (
    Relevancies,
    apply_co_attention,
    apply_cross_attention,
    apply_encoder_decoder,
    apply_self_attention,
    class_attention,
    init_relevancies,
    normalise_relevancies,
)


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
    a = matrix([0.0, 1.0], [0.0, 0.0])
    once = apply_self_attention(init_relevancies(1, 2, 1, a), a)
    assert_close(once.ss, matrix([1.0, 1.0], [0.0, 1.0]))
    assert_close(apply_self_attention(once, a).ss, matrix([1.0, 2.0], [0.0, 1.0]))


def test_self_attention_takes_along_what_was_gathered_from_the_other_sequence():
    a = matrix([0.0, 0.5], [0.0, 0.0])
    before = init_relevancies(1, 2, 1, a)._replace(sq=matrix([1.0], [4.0]))
    after = apply_self_attention(before, a)
    assert_close(after.sq, matrix([3.0], [4.0]))  # 1 + 0.5 * 4
    assert_close(after.qq, before.qq)


def test_normalising_by_hand():
    """R - I = [[0, 3], [1, 1]]: rows become [0, 1] and [1/2, 1/2], plus I."""
    assert_close(normalise_relevancies(matrix([1.0, 3.0], [1.0, 2.0])), matrix([1.0, 1.0], [0.5, 1.5]))


def test_normalising_nothing_is_nothing():
    """The released code divides 0 by 0 here."""
    assert_close(normalise_relevancies(matrix([1.0, 0.0], [2.0, 1.0])), matrix([1.0, 0.0], [1.0, 1.0]))


def test_cross_attention_by_hand():
    """Before any self-attention both normalised matrices are I: R_sq is the attention itself."""
    across = matrix([0.2, 0.8], [0.6, 0.4])
    after = apply_cross_attention(init_relevancies(1, 2, 2, across), across)
    assert_close(after.sq, across)
    assert_close(after.ss, matrix([1.0, 0.0], [0.0, 1.0]))


def test_rule_11_by_hand():
    """What q already owes to s comes back to s: R_ss + A R_qs."""
    across = matrix([2.0])
    before = init_relevancies(1, 1, 1, across)._replace(qs=matrix([3.0]))
    assert_close(apply_cross_attention(before, across).ss, matrix([7.0]))


def test_co_attention_sees_both_sides_as_they_were():
    forth, back = noise(2, 3, 4), noise(2, 4, 3, seed=1)
    before = init_relevancies(2, 3, 4, forth)
    before = apply_self_attention(before, noise(2, 3, 3, seed=2))
    before = apply_self_attention(before.swapped, noise(2, 4, 4, seed=3)).swapped
    before = before._replace(qs=noise(2, 4, 3, seed=4), sq=noise(2, 3, 4, seed=5))
    after = apply_co_attention(before, forth, back)
    ss, qq = normalise_relevancies(before.ss), normalise_relevancies(before.qq)
    assert_close(after.sq, before.sq + ss.mT @ forth @ qq)
    assert_close(after.qs, before.qs + qq.mT @ back @ ss)
    assert_close(after.ss, before.ss + forth @ before.qs)
    assert_close(after.qq, before.qq + back @ before.sq)


def test_the_order_of_the_two_sides_does_not_matter():
    forth, back = noise(1, 3, 4), noise(1, 4, 3, seed=1)
    before = apply_self_attention(init_relevancies(1, 3, 4, forth), noise(1, 3, 3, seed=2))
    one, other = apply_co_attention(before, forth, back), apply_co_attention(before.swapped, back, forth).swapped
    for a, b in zip(one, other, strict=True):
        assert_close(a, b)


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
    return r_qq, r_qi, r_ii


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_encoder_and_decoder_as_released_written_slowly(layers):
    encoder = [noise(1, 5, 5, seed=seed) for seed in range(layers)]
    decoder = [(noise(1, 3, 3, seed=10 + seed), noise(1, 3, 5, seed=20 + seed)) for seed in range(2)]
    found = apply_encoder_decoder(encoder, decoder)
    ss, sq, qq = slowly(encoder, decoder)
    assert_close(found.ss[0], ss)
    assert_close(found.sq[0], sq)
    assert_close(found.qq[0], qq)
    assert not found.qs.any()


def test_one_row_without_evidence_does_not_blank_the_others():
    """An object query that attends to nothing for its class: released code loses every row with it."""
    own = noise(1, 3, 3)
    own[0, 1] = 0
    found = apply_encoder_decoder([noise(1, 4, 4, seed=1)], [(own, noise(1, 3, 4, seed=2))])
    assert found.sq.isfinite().all()
    assert (found.sq[0].sum(-1) > 0).all()


def test_without_normalising_it_is_another_rule():
    encoder, decoder = [noise(1, 4, 4)], [(noise(1, 3, 3, seed=1), noise(1, 3, 4, seed=2))]
    plain = apply_encoder_decoder(encoder, decoder, normalise=False)
    ss, qq = torch.eye(3) + decoder[0][0], torch.eye(4) + encoder[0]
    assert_close(plain.sq, ss.mT @ decoder[0][1] @ qq)
    assert not torch.allclose(plain.sq, apply_encoder_decoder(encoder, decoder).sq)


def test_a_batch_is_its_examples():
    encoder, decoder = [noise(3, 4, 4)], [(noise(3, 2, 2, seed=1), noise(3, 2, 4, seed=2))]
    together = apply_encoder_decoder(encoder, decoder)
    for i in range(3):
        alone = apply_encoder_decoder(
            [a[i : i + 1] for a in encoder], [(o[i : i + 1], c[i : i + 1]) for o, c in decoder]
        )
        for a, b in zip(Relevancies(*(part[i : i + 1] for part in together)), alone, strict=True):
            assert_close(a, b)
