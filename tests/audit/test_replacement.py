"""Replaced weights: by hand, and their effect on models whose attention is known to decide or not to matter."""

from itertools import combinations

import pytest
import torch
from audit.known import deciding, idle, sentences
from conftest import animal
from tiny_text import wordpiece

import whyformer as why
from whyformer._audit.checks.attention_choice import choose_attention
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.replacement import (
    RANDOM_KINDS,
    REPLACEMENT_KINDS,
    ReplacementNoise,
    borrow_weights,
    concentrate_on_largest,
    make_one_hot,
    make_uniform,
    permute_weights,
    replace_attention,
    summarise_change,
)
from whyformer._audit.reruns import AttentionReplay
from whyformer._audit.reruns import attention_replay as replay

OWN = torch.tensor([[[[0.4, 0.3, 0.2, 0.1, 0.0]]]], dtype=torch.float64)
FREE = torch.tensor([[[[True, True, True, True, False]]]])


def audit_attention(model, inputs, attention="last", **settings):
    made = AttentionReplay(model, model.encode(inputs), range(8))
    return AuditedAttention(made, choose_attention(attention, made.heads)[0], **settings)


def test_a_permutation_keeps_the_weights_and_moves_them_by_the_noise():
    noise = torch.tensor([[[[0.9, 0.1, 0.5, 0.3, 0.0]]]])  # free places in the order 1, 3, 2, 0
    assert permute_weights(OWN, FREE, noise)[0, 0, 0].tolist() == [0.3, 0.1, 0.2, 0.4, 0.0]


def test_all_heads_are_permuted_alike_so_that_their_mean_is():
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(1, 3, 4, 4, dtype=torch.float64, generator=generator)
    noise = torch.rand(1, 1, 4, 4, generator=generator)
    free = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    moved = permute_weights(own, free, noise)
    torch.testing.assert_close(moved.mean(1), permute_weights(own.mean(1, keepdim=True), free, noise)[:, 0])
    assert torch.equal(moved.sort(-1).values, own.sort(-1).values) and not torch.equal(moved, own)


def test_every_kind_block_and_example_has_noise_of_its_own():
    """With the same noise in every block, one permutation would move the weights of all blocks alike."""
    it = animal("bert")
    audited = audit_attention(why.open(it.module), it.inputs, "rollout")
    noise = ReplacementNoise(audited, 2, seed=0)
    examples, blocks = range(audited.replay.batch), audited.choice.blocks
    assert len(examples) > 1 and len(blocks) > 1
    drawn = {(k, b, i): noise.draw(k, b, i).clone() for k in RANDOM_KINDS for b in blocks for i in examples}
    for one, other in combinations(drawn, 2):
        assert not torch.equal(drawn[one], drawn[other]), f"{one} and {other} have the same noise"
    again = ReplacementNoise(audited, 2, seed=0)
    assert all(torch.equal(again.draw(*key), drawn[key]) for key in reversed(drawn))


def test_other_replacements_by_hand():
    assert make_uniform(OWN, FREE)[0, 0, 0].tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.0])
    assert concentrate_on_largest(OWN, FREE)[0, 0, 0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0, 0.0])
    noise = torch.tensor([[[[0.1, 0.2, 0.9, 0.3, 1.0]]]])
    assert make_one_hot(OWN, FREE, noise)[0, 0, 0].tolist() == pytest.approx([0.0, 0.0, 1.0, 0.0, 0.0])
    other = torch.tensor([[[[0.0, 0.5, 0.5]]]], dtype=torch.float64)
    assert borrow_weights(OWN, FREE, other)[0, 0, 0].tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0, 0.0])
    nothing = torch.tensor([[[[0.0, 0.0, 0.0, 0.0, 1.0]]]], dtype=torch.float64)
    assert borrow_weights(OWN, FREE, nothing)[0, 0, 0].tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0.0])


def test_other_keys_keep_their_weight():
    words = torch.tensor([[[[False, True, True, True, False]]]])
    assert make_uniform(OWN, words)[0, 0, 0].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2, 0.0])


def test_attention_that_decides_changes_the_output():
    """Of 8 places 7 are wrong: nearly every permutation flips the prediction. p = 1 / (1 + exp(-2 s))."""
    for one in replace_attention(audit_attention(deciding(), sentences()), draws=50):
        assert one["permutation"]["tvd"] > 0.7 and one["permutation"]["flips"] > 0.7
        assert one["uniform"]["tvd"] > 0.6
        assert one["largest"]["tvd"] < 0.01  # it was there already


def test_attention_that_cannot_matter_leaves_the_output():
    for one in replace_attention(audit_attention(idle(), sentences()), draws=50):
        for kind in REPLACEMENT_KINDS:
            assert one[kind]["tvd_most"] < 1e-12 and one[kind]["flips"] == 0


def test_an_example_does_not_depend_on_its_batch():
    model, batch = deciding(), sentences(4)
    together = replace_attention(audit_attention(model, batch), kinds=["permutation", "one-hot"], draws=7)
    for i, words in enumerate(batch):
        alone = replace_attention(audit_attention(model, [words]), kinds=["permutation", "one-hot"], draws=7)[0]
        assert alone["permutation"]["tvd"] == pytest.approx(together[i]["permutation"]["tvd"], abs=1e-12)
        assert alone["one-hot"]["tvd"] == pytest.approx(together[i]["one-hot"]["tvd"], abs=1e-12)


def test_padding_changes_nothing():
    model = why.open(animal("bert").module)
    it = animal("bert")
    together = replace_attention(audit_attention(model, it.inputs, 1), kinds=["permutation"], draws=5)
    alone = replace_attention(audit_attention(model, it.alone(2), 1), kinds=["permutation"], draws=5)[0]
    assert alone["permutation"]["tvd"] == pytest.approx(together[2]["permutation"]["tvd"], abs=1e-9)


def test_with_one_token_nothing_can_move():
    audited = audit_attention(deciding(), [torch.tensor([3])])
    assert not audited.can_change(0) and replace_attention(audited) == [None]


def test_chunks_change_nothing(monkeypatch):
    audited = audit_attention(deciding(), sentences(3))
    whole = replace_attention(audited, draws=9)
    monkeypatch.setattr(replay, "MAX_TOKENS", {"cpu": 40})
    assert audited.max_rows == 5
    assert [one["permutation"]["tvd"] for one in replace_attention(audited, draws=9)] == pytest.approx(
        [one["permutation"]["tvd"] for one in whole]
    )


def test_words_only_leaves_special_tokens_their_weight():
    model = why.Model(animal("bert").module, "tiny", "text", tokenizer=wordpiece())
    audited = audit_attention(model, ["a good film", "not good at all"], 0, words_only=True)
    moved = make_uniform(audited.own_weights(0), audited.free_keys(0))
    special = audited.replay.layout.special[0]
    assert special.sum() == 2
    assert not torch.equal(moved, audited.own_weights(0))
    assert torch.equal(moved[0][..., special], audited.own_weights(0)[0][..., special])


def test_change_by_hand():
    before = torch.tensor([0.8, 0.2])
    after = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    made = summarise_change(before, after, 0)
    assert made["tvd"] == pytest.approx(0.1) and made["shift"] == pytest.approx(-0.1)
    assert made["tvd_most"] == pytest.approx(0.4) and made["flips"] == pytest.approx(1 / 3)
    assert made["predicted"] == {"0": 2, "1": 1}
