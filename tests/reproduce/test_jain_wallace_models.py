"""The models of Jain & Wallace match the paper, and the audit finds their attention."""

import numpy as np
import pytest
import torch

import whyformer as why
from whyformer._audit import audit
from whyformer._audit.checks.attention_choice import choose_attention
from whyformer._audit.checks.importance import find_attended_units
from whyformer._audit.reruns import AttentionReplay
from whyformer.errors import IncompleteModel, InputError, ModelNotFound, UnsupportedModel
from whyformer_papers.jain_wallace_models import (
    ATTENTIONS,
    ENCODERS,
    PADDING,
    READERS,
    SEPARATOR,
    UNKNOWN,
    JainWallaceModel,
    JainWallaceReader,
    build_vocabulary,
    load_jain_wallace,
    save_jain_wallace,
    wrap_jain_wallace,
)
from whyformer_papers.jain_wallace_rows import choose_jain_wallace_search, measure_jain_wallace

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
        made(), TEXTS, samples=5, search_limit=2, steps=3, tests=["agreement", "replacement", "adversarial", "shape"]
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


# --- a text and a question --------------------------------------------------------------------------------------------

PAIRS = [("a b c d", "a ?"), ("b a c", "d c ?"), ("d c b a b a", "b ?"), ("c d a", "a ?")]
READER_VOCABULARY = [PADDING, UNKNOWN, SEPARATOR, *"abcd?"]


def made_reader(encoder="bilstm", attention="additive"):
    torch.manual_seed(0)
    module = JainWallaceReader(8, encoder=encoder, attention=attention, given=6, width=8, classes=3).double()
    return wrap_jain_wallace(module, READER_VOCABULARY, ("no", "maybe", "yes"))


@every_encoder
@every_attention
def test_a_batch_of_pairs_equals_its_pairs_one_by_one(encoder, attention):
    model = made_reader(encoder, attention)
    together = model.module(**model.encode(PAIRS).inputs)
    for i, pair in enumerate(PAIRS):
        torch.testing.assert_close(model.module(**model.encode([pair]).inputs)[0], together[i])


@every_encoder
@every_attention
def test_attention_covers_the_text_and_not_the_question(encoder, attention):
    model = made_reader(encoder, attention)
    replay = AttentionReplay(model, model.encode(PAIRS), [0])
    assert replay.attention[0].shape == (4, 1, 1, 9)
    for i, (text, _) in enumerate(PAIRS):
        length = len(text.split())
        assert replay.allowed[0][i, 0, 0].tolist() == [True] * length + [False] * (9 - length)
        assert replay.attention[0][i, 0, 0, length:].abs().sum() == 0
    assert find_attended_units(replay, choose_attention("last", (1,))[0]).sum(-1).tolist() == [4, 3, 6, 3]
    torch.testing.assert_close(replay.predict({0: replay.attention[0]}, torch.arange(4)), replay.logits)
    assert replay._reproduces == {0: True}  # both encoders are replayed, not run again


def test_attention_given_a_question_by_hand():
    hidden, question = torch.randn(1, 3, 8, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    additive = made_reader(attention="additive").module.attention
    scores = [
        (torch.tanh(additive.inner(h) + additive.question(question[0])) * additive.outer.weight[0]).sum()
        for h in hidden[0, :2]
    ]
    torch.testing.assert_close(additive(hidden, mask, question)[0, 0, :2], torch.stack(scores).softmax(0))
    dot = made_reader(attention="dot").module.attention
    scores = torch.stack([(h * question[0]).sum() / 8**0.5 for h in hidden[0, :2]])
    torch.testing.assert_close(dot(hidden, mask, question)[0, 0], torch.cat([scores.softmax(0), torch.zeros(1)]))


@every_encoder
def test_the_question_is_encoded_by_itself(encoder):
    """As a sequence of its own, it gives the same vector as behind a text."""
    model = made_reader(encoder)
    inputs = model.encode(PAIRS).inputs
    words = model.module.embedding(inputs["input_ids"])
    found = model.module.question(words, (inputs["attention_mask"] == 1) & (inputs["token_type_ids"] == 1))
    for i, (_, question) in enumerate(PAIRS):
        ids = torch.tensor([[2, *(READER_VOCABULARY.index(word) for word in question.split())]])
        alone = model.module.question.summarise(model.module.embedding(ids), torch.ones_like(ids).bool())
        torch.testing.assert_close(found[i], alone[0])


def test_gradients_reach_text_and_question():
    model = made_reader()
    inputs = model.encode(PAIRS[:1]).inputs
    model.module(**inputs)[0, 0].backward()
    touched = model.module.embedding.weight.grad.abs().sum(-1) > 0
    assert touched.tolist() == [False, False, True, True, True, True, True, True]


def test_a_reader_can_be_audited():
    data = [(pair, label) for pair, label in zip(PAIRS, ("no", "yes", "maybe", "no"), strict=True)]
    rows = measure_jain_wallace(made_reader(), data, draws=5, search_limit=2)
    assert (
        len(rows) == 4 and np.isfinite(rows.columns["permuted"]).all() and np.isfinite(rows.columns["jsd"]).sum() == 2
    )
    assert rows.labels == ("no", "maybe", "yes")


def test_a_text_may_lose_its_only_word():
    rows = measure_jain_wallace(made_reader(), [(("a", "b ?"), "no"), (("a b", "c ?"), "no")], tests=["agreement"])
    assert np.isnan(rows.columns["gradient_tau"][0]) and np.isfinite(rows.columns["gradient_tau"][1])


def test_readers_are_saved_and_opened_by_reproduce_alone(tmp_path):
    from whyformer.cli.reproduce import open_model_or_reader
    from whyformer.cli.running import open_quietly

    model = made_reader()
    folder = str(tmp_path / "babi-1-bilstm-additive-0")
    save_jain_wallace(model, folder, task="babi-1", seed=0)
    for wrong in (folder, tmp_path, READERS, READERS / "cnn"):
        for open_one in (why.open, open_quietly):
            with pytest.raises(UnsupportedModel, match=r"Only `whyformer reproduce jain-wallace` runs these"):
                open_one(str(wrong))
    opened = open_model_or_reader(folder, None)
    assert opened.labels == ("no", "maybe", "yes") and opened.name == "babi-1-bilstm-additive-0"
    inputs = model.encode(PAIRS).inputs
    torch.testing.assert_close(opened.module(**inputs).double(), model.module(**inputs), rtol=0, atol=1e-2)


def test_punctuation_is_removed_where_the_model_was_trained_so(tmp_path):
    words = build_vocabulary(["It's good, it's good."], letters_only=True)
    assert words == [PADDING, UNKNOWN, "it", "s", "good"]
    model = wrap_jain_wallace(JainWallaceModel(5, given=4, width=4), words, ("no", "yes"), letters_only=True)
    save_jain_wallace(model, tmp_path / "there")
    for one in (model, load_jain_wallace(tmp_path / "there")):
        assert one.tokenizer("Good? It's!")["input_ids"] == [4, 2, 3]


def test_the_tolerance_of_each_task():
    assert choose_jain_wallace_search("paper", has_question=False).selection == 0.01
    assert choose_jain_wallace_search("paper", has_question=True).tolerance == 0.05
    released = choose_jain_wallace_search("released", has_question=True)
    assert (released.tolerance, released.selection) == (0.01, 0.05)
    with pytest.raises(InputError, match="Available: paper, released"):
        choose_jain_wallace_search("mine", has_question=False)


@pytest.mark.parametrize("lengths", [(5, 3, 1), (4, 4, 4)])
def test_the_bilstm_is_that_of_torch_on_packed_sequences(lengths):
    """States and gradients of both directions, and of the final states."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    encoder = made().module.encoder
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    states, (final, _) = encoder.lstm(packed)
    expected = pad_packed_sequence(states, batch_first=True, total_length=5)[0]
    torch.testing.assert_close(encoder(x, mask), expected)
    torch.testing.assert_close(encoder.summarise(x, mask), torch.cat([final[0], final[1]], -1))
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad((encoder(x, mask) * weights).sum(), x)[0], wanted)
