"""The models of Jain & Wallace match the paper, and the audit finds their attention."""

import pytest
import torch

from whyformer._audit import audit
from whyformer._audit.replay import AttentionReplay
from whyformer.demo.jain_wallace import (
    ATTENTIONS,
    ENCODERS,
    PADDING,
    UNKNOWN,
    JainWallaceModel,
    build_vocabulary,
    load_jain_wallace,
    save_jain_wallace,
    wrap_jain_wallace,
)
from whyformer.errors import IncompleteModel, InputError, ModelNotFound

TEXTS = ["a b c d", "b a", "d c b a b a", "c d a"]
VOCABULARY = [PADDING, UNKNOWN, *"abcd"]
every_encoder = pytest.mark.parametrize("encoder", ENCODERS)
every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


def made(encoder="bilstm", attention="additive"):
    torch.manual_seed(0)
    module = JainWallaceModel(6, encoder=encoder, attention=attention, given=6, width=8).double()
    return wrap_jain_wallace(module, VOCABULARY, ("no", "yes"))


@every_encoder
@every_attention
def test_a_batch_equals_its_sentences_one_by_one(encoder, attention):
    model = made(encoder, attention)
    together = model.module(**model.encode(TEXTS).inputs)
    for i, text in enumerate(TEXTS):
        torch.testing.assert_close(model.module(**model.encode([text]).inputs)[0], together[i])


@every_encoder
@every_attention
def test_its_attention_is_found_and_the_encoder_is_replayed(encoder, attention):
    model = made(encoder, attention)
    replay = AttentionReplay(model, model.encode(TEXTS), [0])
    assert replay.heads == (1,) and replay.attention[0].shape == (4, 1, 1, 6)
    assert replay.allowed[0][1, 0, 0].tolist() == [True, True, False, False, False, False]
    uniform = torch.where(replay.allowed[0], 1.0, 0.0).double()
    found = replay.predict({0: uniform / uniform.sum(-1, keepdim=True)}, torch.arange(4))
    assert replay._reproduces == {0: True}
    hidden = model.module.encoder(
        model.module.embedding(model.encode(TEXTS).inputs["input_ids"]), replay.allowed[0][:, 0, 0]
    )
    mean = torch.stack([h[: len(t.split())].mean(0) for h, t in zip(hidden, TEXTS, strict=True)])
    torch.testing.assert_close(found, model.module.answer(mean))


def test_additive_and_dot_attention_by_hand():
    for attention in ("additive", "dot"):
        module = made("average", attention).module
        hidden = torch.randn(1, 3, 8, dtype=torch.float64)
        weights = module.attention(hidden, torch.tensor([[True, True, False]]))[0, 0]
        if attention == "additive":
            inner, outer = module.attention.inner, module.attention.outer
            scores = [(torch.tanh(inner.weight @ h + inner.bias) * outer.weight[0]).sum() for h in hidden[0, :2]]
        else:
            scores = [(h * module.attention.query.weight[0]).sum() / 8**0.5 for h in hidden[0, :2]]
        torch.testing.assert_close(weights[:2], torch.stack(scores).softmax(0))
        assert weights[2] == 0


def test_it_can_be_audited():
    found = audit(
        made(), TEXTS, draws=5, search_limit=2, steps=3, tests=["agreement", "replacement", "adversarial", "shape"]
    )
    assert found.attention == ("block 0",) and set(found.summary["attention"]["block 0"]) == {
        "agreement", "replacement", "adversarial",
    }  # fmt: skip


def test_save_and_load(tmp_path):
    model = made()
    save_jain_wallace(model, tmp_path / "there")
    again = load_jain_wallace(tmp_path / "there")
    assert again.labels == ("no", "yes") and again.tokenizer("a b z")["input_ids"] == [2, 3, 1]
    inputs = model.encode(TEXTS).inputs
    torch.testing.assert_close(again.module(**inputs).double(), model.module(**inputs), rtol=0, atol=1e-2)
    (tmp_path / "there" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(IncompleteModel, match="damaged"):
        load_jain_wallace(tmp_path / "there")
    with pytest.raises(ModelNotFound, match=r"no original\.json"):
        load_jain_wallace(tmp_path)


def test_the_vocabulary_is_lower_case():
    assert build_vocabulary(["The film", "the end"], least=1) == [PADDING, UNKNOWN, "the", "film", "end"]
    assert build_vocabulary(["The film", "the end"], least=2) == [PADDING, UNKNOWN, "the"]


@pytest.mark.parametrize("wrong", [{"encoder": "gru"}, {"attention": "sparse"}])
def test_unknown_kinds_are_refused(wrong):
    with pytest.raises(InputError, match="Available:"):
        JainWallaceModel(5, **wrong)
