"""The world of names and its tagger: the evidence decides, and nothing else does."""

import pytest
import torch

import whyformer
from whyformer.demo import names
from whyformer.errors import InputError
from whyformer.targets import Entity

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
        "of course, cossa laughed beside the big poet, while without the small island, wendal remained for a while."
    )
    assert (sentence.words[sentence.name], sentence.label) == ("wendal", "LOC")
    assert (sentence.words[sentence.evidence], sentence.words[sentence.decoy]) == ("island", "poet")
    assert sentence.decoy_label == "PER"


def test_every_sentence_has_one_evidence_and_one_decoy_of_another_kind():
    for sentence in SENTENCES:
        kinds = [tag for word in sentence.words for tag, words in names.EVIDENCE.items() if word in words]
        assert len(kinds) == 2 and len({*kinds}) == 2
        assert sentence.words[sentence.evidence] in names.EVIDENCE[sentence.label]
        assert sentence.words[sentence.name] in names.NAMES
        assert sum(tag != "O" for tag in sentence.tags) == 2
        assert {*sentence.words} <= {*names.list_vocabulary()}


def test_held_out_sentences_are_not_in_training():
    assert not {s.words for s in SENTENCES} & {s.words for s in names.generate(2000, 10_000_000, part="training")}
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'all'"):
        names.generate(1, 0, part="all")


def test_the_tagger_follows_the_evidence(tagger):
    """Nearly always right, and with evidence of the other kind it says the other kind."""
    places = [s.name for s in SENTENCES]
    right = find_tag(tagger, [s.text for s in SENTENCES], places)
    assert sum(tag == s.label for tag, s in zip(right, SENTENCES, strict=True)) >= 57
    changed = []
    for s in SENTENCES:
        words = list(s.words)
        words[s.evidence] = names.EVIDENCE[s.decoy_label][0]
        changed.append(names.write_sentence(words).replace(" ;", ";"))
    other = find_tag(tagger, changed, places)
    assert sum(tag == s.decoy_label for tag, s in zip(other, SENTENCES, strict=True)) >= 54


def test_a_good_method_finds_the_evidence_and_chance_does_not(tagger):
    part = SENTENCES[:40]
    target = [Entity(s.name + 1, label=s.label) for s in part]
    versus = [Entity(s.name + 1, label=s.decoy_label) for s in part]
    hits = {}
    for method in ("leave_one_out", "attnlrp", "chance"):
        scores = whyformer.explain(tagger, [s.text for s in part], method, target=target, versus=versus).scores
        best = [int(row[1 : 1 + len(s.words)].argmax()) for row, s in zip(scores, part, strict=True)]
        hits[method] = sum(place == s.evidence for place, s in zip(best, part, strict=True))
    assert hits["leave_one_out"] >= 34 and hits["chance"] <= 10
