"""Chance."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.methods import chance


def mask_of(*lengths, tokens=6, left=False):
    places = torch.arange(tokens).expand(len(lengths), tokens)
    length = torch.tensor(lengths)[:, None]
    return places >= tokens - length if left else places < length


def test_is_uniform():
    """Mean 1/2, variance 1/12, about 2000 in each tenth."""
    scores = chance(mask_of(20_000, tokens=20_000), [3])
    assert_close(scores.mean().item(), 0.5, atol=0.01, rtol=0)
    assert_close(scores.var().item(), 1 / 12, atol=0.005, rtol=0)
    assert torch.histc(scores, 10, 0, 1).min() > 1800


def test_is_the_same_every_time_and_leaves_the_dice_of_others_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = chance(mask_of(6), [3])
    torch.manual_seed(2)
    assert torch.equal(chance(mask_of(6), [3]), first)
    torch.manual_seed(1)
    chance(mask_of(6), [3])
    assert torch.equal(torch.get_rng_state(), before)


def test_depends_on_the_example_not_on_its_place():
    together = chance(mask_of(6, 4, 5), [7, 8, 9])
    turned = chance(mask_of(5, 4, 6), [9, 8, 7])
    assert torch.equal(turned, together.flip(0))
    assert torch.equal(chance(mask_of(4), [8]), together[1:2])


@pytest.mark.parametrize("left", [False, True])
def test_padding_gets_nothing_and_changes_nothing(left):
    mask = mask_of(4, left=left)
    scores = chance(mask, [8])
    assert torch.equal(scores[mask], chance(mask_of(4, tokens=4), [8])[0])
    assert (scores[~mask] == 0).all()


def test_another_seed_or_example_gives_other_scores():
    scores = [chance(mask_of(6), [mark], seed=seed) for seed in (0, 1, 12) for mark in (0, 1, 3, 23)]
    distinct = {tuple(each[0].tolist()) for each in scores}
    assert len(distinct) == len(scores)


def test_seed_and_example_do_not_run_together():
    """(1, 23) is not (12, 3)."""
    assert not torch.equal(chance(mask_of(6), [23], seed=1), chance(mask_of(6), [3], seed=12))


def test_takes_fingerprints_of_any_size_and_kind():
    huge = 2**63 - 1
    scores = chance(mask_of(6, 6), [huge, -5])
    assert torch.equal(chance(mask_of(6, 6), torch.tensor([huge, -5])), scores)
    assert torch.equal(chance(mask_of(6, 6), (huge, -5)), scores)


def test_an_example_without_tokens_gets_none():
    assert torch.equal(chance(mask_of(0), [1]), torch.zeros(1, 6, dtype=torch.double))
