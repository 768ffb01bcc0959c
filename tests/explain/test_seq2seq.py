"""Texts for models with an encoder and a decoder: what is written is explained, token by token or as a whole."""

import pytest
import torch
from tiny_seq2seq import make_seq2seq, make_tokenizer
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import TargetError

TEXT = "the red house is big"


@pytest.fixture(scope="module", params=["t5", "marian"])
def model(request):
    return why.open(make_seq2seq(request.param), tokenizer=make_tokenizer())


def write(model, tokens=20):
    """What transformers itself writes."""
    ids = make_tokenizer()(TEXT, return_tensors="pt").input_ids
    made = model.module.model.generate(ids, max_new_tokens=tokens, num_beams=1, do_sample=False)
    return [i for i in made[0, 1:].tolist() if i != 1]


def test_generation_is_that_of_the_model(model):
    prompt = why.generate(model, TEXT, max_new_tokens=5)
    assert list(prompt.answer_ids) == write(model, 5)
    assert prompt.answer_text.split() == [make_tokenizer().decode([i]) for i in prompt.answer_ids]
    assert prompt.text.startswith(TEXT) and [region.name for region in prompt.regions] == ["source", "start"]


def test_without_a_target_the_last_written_token_is_explained(model):
    e, written = why.explain(model, TEXT), write(model)
    assert e.targets[0].label == repr(make_tokenizer().decode([written[-1]]))
    pieces = e.tokens[0].pieces
    assert pieces[e.streams["source"]] == (*TEXT.split(), "</s>")
    assert list(pieces[e.streams["prefix"]][1:]) == [make_tokenizer().decode([i]) for i in written]
    assert float(e.scores[0, -1]) == 0  # the explained token itself is not read


def test_a_word_of_the_output_is_a_target(model):
    prompt = why.generate(model, TEXT, max_new_tokens=4)
    word = prompt.answer_text.split()[0]
    by_word = why.explain(model, prompt, target=word)
    assert_close(by_word.scores, why.explain(model, prompt, target=why.targets.Answer(0)).scores)
    with pytest.raises(TargetError, match="does not occur in the answer"):
        why.explain(model, TEXT, target="chien")


def test_a_span_is_the_sum_of_its_tokens(model):
    prompt = why.generate(model, TEXT, max_new_tokens=4)
    parts = [why.explain(model, prompt, "attnlrp", target=why.targets.Answer(i)).scores for i in (1, 2)]
    assert_close(why.explain(model, prompt, "attnlrp", target=why.targets.Answer((1, 2))).scores, sum(parts))


def test_another_translation_can_be_given(model):
    e = why.explain(model, TEXT, answer="la maison")
    assert e.targets[0].label == "'la maison'" and e.tokens[0].pieces[-2:] == ("la", "maison")


@pytest.mark.parametrize("method", ["libragrad", "leave_one_out"])
def test_output_tokens_by_source_tokens(model, method):
    """Each row is the explanation of that token after those before it."""
    g = why.explain_generation(model, TEXT, method, max_new_tokens=3)
    matrix = g.matrix("source")
    assert matrix.shape == (len(g), 6) and bool(matrix.isfinite().all())
    prompt = g.sequence
    for step in range(len(g)):
        alone = why.explain(model, prompt, method, target=why.targets.Answer(step))
        assert_close(matrix[step], alone.stream("source").scores[0], rtol=1e-6, atol=1e-9)
        assert g[step].streams == {"source": slice(0, 6), "prefix": slice(6, 7 + step)}
    assert torch.isnan(g.matrix("prefix")).sum() == sum(range(len(g)))


def test_streams_are_saved_and_joined_into_words(model, tmp_path):
    e = why.explain(model, TEXT, answer="la maison rouge")
    e.save(tmp_path / "e.safetensors")
    e.save(tmp_path / "e.json")
    for name in ("e.safetensors", "e.json"):
        assert why.load(tmp_path / name).streams == e.streams
    words = e.words()
    assert words.streams == {"source": slice(0, 6), "prefix": slice(6, 10)}
    assert e.stream("prefix").tokens[0].text == "la maison rouge"
    assert e.stream("source").words().top(6)


def test_everything_is_shown(model, tmp_path):
    g = why.explain_generation(model, TEXT, max_new_tokens=3)
    g.save(tmp_path / "g.html")
    why.explain(model, TEXT).save(tmp_path / "e.html")
    assert "source" in (tmp_path / "g.html").read_text("utf-8")
    assert "source" in str(why.explain(model, TEXT))
    assert why.compare(model, TEXT, ["libragrad", "rollout"]).labels == ("libragrad", "rollout")
    assert "next token" in str(why.diagnose(model, TEXT))
