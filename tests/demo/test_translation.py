"""The world of translations and its translator: which word of the source gives each written word is known."""

import pytest
import torch

import whyformer as why
from whyformer.demo.draws import part_of
from whyformer_papers.worlds import translation

SENTENCES = translation.generate(60, 0)


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/translation")


def test_a_sentence_by_hand():
    words = "the old red cat often sees a dog".split()
    one = translation.Translation(tuple(words), (0, 3, 2, 1, 6, 7, 4, 5))
    assert one.text == "lo miru sabe ronu un tavi pelka zovi"
    assert one.candidates[0] == (0,)


def test_every_word_is_translated_once():
    for one in SENTENCES:
        assert sorted(one.alignment) == list(range(len(one.source_words)))
        assert one.words == tuple(translation.TRANSLATIONS[one.source_words[i]] for i in one.alignment)
        assert part_of(one.source) == "held-out"
    assert len(set(translation.TRANSLATIONS.values())) == len(translation.TRANSLATIONS)


def test_the_order_is_another_one():
    """A word at the same place is right less than half of the time."""
    same = [place == i for one in SENTENCES for i, place in enumerate(one.alignment)]
    assert 0.2 < sum(same) / len(same) < 0.5


def test_sentences_depend_on_the_seed_and_their_number_only():
    assert translation.generate(3, 0) == SENTENCES[:3] != translation.generate(3, 1)


def test_the_model_translates(model):
    for one in SENTENCES[:20]:
        assert why.generate(model, one.source, max_new_tokens=30).answer_text.split() == list(one.words)


@pytest.mark.parametrize(("method", "least"), [("libragrad", 0.98), ("attnlrp", 0.98), ("generic_attention", 0.85)])
def test_the_source_word_is_found(model, method, least):
    """Chance is 0.07, the word at the same place 0.3."""
    hits = []
    for one in SENTENCES[:6]:
        best = why.explain_generation(model, one.source, method, continuation=one.text).matrix("source").argmax(1)
        hits += (best == torch.tensor(one.alignment)).tolist()
    assert sum(hits) / len(hits) >= least


def test_relevance_adds_up_to_the_logit(model):
    for one in SENTENCES[:3]:
        for step in why.explain_generation(model, one.source, "libragrad", continuation=one.text):
            assert float(step.scores.sum()) == pytest.approx(step.targets[0].score, rel=1e-5)
