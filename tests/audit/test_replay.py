"""A replay from one attention on computes what the whole model would compute."""

import pytest
import torch
from audit.known import deciding, sentences
from conftest import animal

import whyformer as why
from whyformer._audit.checks.attention_choice import choose_attention
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.reruns import AttentionReplay
from whyformer._engine.record import record
from whyformer._engine.run.intervene import Intervention

# Fused, nn.MultiheadAttention, grouped queries, one block called many times; eager where the kernels differ.
KINDS = ["vit", "beit", "bert", "albert", "gpt2", "llama", "gpt", "encoder", "encoder_token_first"]
EAGER = ["bert", "llama"]
every_kind = pytest.mark.parametrize(
    ("name", "kernel"), [*((name, "sdpa") for name in KINDS), *((name, "eager") for name in EAGER)]
)


def make_replay(name, block, kernel="sdpa"):
    it = animal(name, kernel)
    model = why.open(it.module)
    return AttentionReplay(model, model.encode(it.inputs), [block])


def other(replay, block):
    """Weights in reverse order, among the tokens each query may attend to."""
    noise = torch.rand(replay.attention[block].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.where(replay.allowed[block], noise, 0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)


@every_kind
def test_inserting_the_own_attention_gives_the_same_bits(name, kernel):
    replay = make_replay(name, 1, kernel)
    everything = torch.arange(replay.batch)
    assert torch.equal(replay.predict({1: replay.attention[1]}, everything), replay.logits)


@every_kind
def test_a_replay_equals_the_whole_model(name, kernel):
    replay = make_replay(name, 1, kernel)
    weights, of = other(replay, 1), torch.tensor([2, 0, 1, 1])
    found = replay.predict({1: weights[of]}, of)
    assert replay._reproduces == {1: True}, replay.notes
    model = why.open(animal(name, kernel).module)
    changed = Intervention(attention=lambda block, _: weights if block == 1 else None)
    whole = record(model, model.encode(animal(name, kernel).inputs), target=0, keep=set(), intervention=changed)
    logits = AttentionReplay(model, model.encode(animal(name, kernel).inputs))._rerun(
        of, lambda block, _: weights[of] if block == 1 else None, None, False
    )
    torch.testing.assert_close(found, logits, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found, replay.logits[of], rtol=1e-6)
    if whole.logits.shape == replay.logits.shape:
        torch.testing.assert_close(found, whole.logits[of], rtol=1e-9, atol=1e-12)


@every_kind
def test_replacing_attention_changes_later_blocks_only(name, kernel):
    it = animal(name, kernel)
    model = why.open(it.module)
    encoded = model.encode(it.inputs)
    replay = AttentionReplay(model, encoded, [1])
    audited = AuditedAttention(replay, choose_attention(1, replay.heads)[0])
    everything = torch.arange(replay.batch)
    weights = audited.insert_weights(1, everything, other(replay, 1))
    keep = {"attention", "hidden"}
    with why.engine(plan=False):  # interventions use the full engine
        plain = record(model, encoded, target=0, keep=keep)
    changed = record(
        model, encoded, target=0, keep=keep,
        intervention=Intervention(attention=lambda block, _: weights if block == 1 else None),
    )  # fmt: skip
    assert torch.equal(changed["hidden"][0], plain["hidden"][0]) and torch.equal(
        changed["hidden"][1], plain["hidden"][1]
    )
    assert torch.equal(changed["attention"][0], plain["attention"][0])
    assert not torch.equal(changed["hidden"][2], plain["hidden"][2])
    assert not torch.equal(changed["attention"][2], plain["attention"][2]) if len(replay.heads) > 2 else True


def test_one_head_alone_is_replaced():
    replay = make_replay("bert", 1)
    audited = AuditedAttention(replay, choose_attention((1, 2), replay.heads)[0])
    everything = torch.arange(3)
    put = audited.insert_weights(1, everything, other(replay, 1)[:, 2:3])
    assert torch.equal(put[:, :2], replay.attention[1][:, :2])
    assert not torch.equal(put[:, 2], replay.attention[1][:, 2])


def test_modules_before_the_attention_are_not_run_again():
    """The embedding of a BERT runs once, in the first run."""
    it = animal("bert")
    calls = []
    table = it.module.bert.embeddings.word_embeddings
    handle = table.register_forward_hook(lambda *_: calls.append(1))
    try:
        model = why.open(it.module)
        replay = AttentionReplay(model, model.encode(it.inputs), [1])
        for _ in range(3):
            replay.predict({1: other(replay, 1)}, torch.arange(3))
    finally:
        handle.remove()
    assert len(calls) == 1


def test_gradients_flow_into_the_weights():
    replay = make_replay("bert", 1)
    weights = other(replay, 1).requires_grad_()
    replay.predict({1: weights}, torch.arange(3), gradient=True)[:, 0].sum().backward()
    step = torch.zeros_like(weights)
    step[0, 1, 0, 2] = 1e-6
    with torch.no_grad():
        there, here = (replay.predict({1: weights + d}, torch.arange(3))[0, 0] for d in (step, -step))
    assert weights.grad[0, 1, 0, 2].item() == pytest.approx((there - here).item() / 2e-6, rel=1e-5)


def test_padding_and_causal_masks_are_detected():
    bert, gpt = make_replay("bert", 0), make_replay("gpt", 0)
    assert bert.allowed[0][2, 0, 0].tolist() == [True] * 4 + [False] * 5
    assert torch.equal(gpt.allowed[0][0, 0], torch.ones(9, 9).tril().bool())


def test_queries_that_reach_the_output():
    """BERT reads its output at the first token: only that query counts in the last block, all real tokens before."""
    replay = make_replay("bert", 0)
    assert replay.reached[2].sum(-1).tolist() == [1, 1, 1] and bool(replay.reached[2][:, 0].all())
    assert replay.reached[0].sum(-1).tolist() == [9, 6, 4]


def test_one_example_alone_is_the_same_as_in_a_batch():
    model = deciding()
    batch = AttentionReplay(model, model.encode(sentences(3)), [0])
    for i, words in enumerate(sentences(3)):
        alone = AttentionReplay(model, model.encode([words]), [0])
        assert torch.equal(alone.logits[0], batch.logits[i])
        assert alone.attention[0].shape == (1, 1, 1, 8)


def test_a_replay_that_differs_from_the_model_is_not_used():
    """A module that mixes the examples of its batch is detected, and the whole model is run."""

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(10, 4).double()
            self.mix = Mixer()
            self.head = torch.nn.Linear(4, 2).double()

        def forward(self, input_ids):
            x = self.words(input_ids)
            attention = (x @ x.mT).softmax(-1)
            return self.head(self.mix(attention @ x).mean(1) + x[:1].mean() * len(x))

    class Mixer(torch.nn.Module):
        def forward(self, x):
            return x.flip(0)

    torch.manual_seed(0)
    model = why.open(Mixing())
    replay = AttentionReplay(model, model.encode(torch.stack(sentences(3))), [0])
    replay.predict({0: replay.attention[0]}, torch.arange(3))
    assert replay._reproduces == {0: False} and "whole model was run" in replay.notes[0]
