"""The world of names and its tagger: the evidence decides, and nothing else does."""

import pytest
import torch

import whyformer
from whyformer.demo import names
from whyformer.errors import InputError

torch.set_num_threads(1)

SENTENCES = names.generate(60, 0)


@pytest.fixture(scope="module")
def tagger() -> whyformer.Model:
    return whyformer.open("demo/names")


def find_tag(model, texts, places) -> list[str]:
    encoded = model.encode(texts)
    with torch.no_grad():
        best = model.module(**encoded.inputs).logits.argmax(-1)
    return [names.LABELS[int(best[i, place + 1])] for i, place in enumerate(places)]


def test_a_sentence_by_hand():
    sentence = names.generate(1, 0)[0]
    assert sentence.text == (
        "pell outlived nerida at first because lentis is a big museum and pell is a brewery and nerida is a harbour."
    )
    assert (sentence.words[sentence.name], sentence.name, sentence.label) == ("pell", 0, "ORG")
    assert (sentence.words[sentence.evidence], sentence.words[sentence.mention]) == ("brewery", "pell")
    assert [sentence.words[i] for i in sentence.decoys] == ["harbour", "museum"]
    assert sentence.decoy_label == "LOC"


def test_every_name_is_described_once_and_the_two_kinds_differ():
    for sentence in SENTENCES:
        assert sentence.words[sentence.evidence] in names.EVIDENCE[sentence.label]
        assert sentence.words[sentence.name] == sentence.words[sentence.mention] and sentence.name < sentence.mention
        assert sentence.mention < sentence.evidence <= sentence.mention + 4
        assert sentence.label != sentence.decoy_label
        assert {*sentence.words} <= {*names.list_vocabulary()}


def test_held_out_sentences_are_not_in_training():
    assert not {s.words for s in SENTENCES} & {s.words for s in names.generate(2000, 10_000_000, part="training")}
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'all'"):
        names.generate(1, 0, part="all")


def test_the_tagger_follows_the_evidence(tagger):
    """Nearly always right, and with the two deciding words exchanged it says the other kind."""
    places = [s.name for s in SENTENCES]
    right = find_tag(tagger, [s.text for s in SENTENCES], places)
    assert sum(tag == s.label for tag, s in zip(right, SENTENCES, strict=True)) >= 54
    changed = []
    for s in SENTENCES:
        words = list(s.words)
        words[s.evidence], words[s.decoys[0]] = words[s.decoys[0]], words[s.evidence]
        changed.append(names.write_sentence(words).replace(" ;", ";"))
    other = find_tag(tagger, changed, places)
    assert sum(tag == s.decoy_label for tag, s in zip(other, SENTENCES, strict=True)) >= 50
