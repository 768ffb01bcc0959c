"""The entailment world and its model: the evidence is in both texts, and no other word decides."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import whyformer as why
from whyformer import TextPair
from whyformer.demo import entailment
from whyformer.errors import InputError

torch.set_num_threads(1)

PAIRS = entailment.generate(60, 0)
FINDS = ("attnlrp", "libragrad", "leave_one_out")  # must find the deciding fact in the premise


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/entailment")


def answer(model, pairs) -> list[str]:
    """The label that the model gives each pair."""
    with torch.no_grad():
        best = model.module(**model.encode([TextPair(*pair.texts) for pair in pairs]).inputs).logits.argmax(-1)
    return [entailment.LABELS[i] for i in best.tolist()]


def decide(premise: str, hypothesis: str) -> str:
    """The definition, from the texts alone: is the thing in the premise, and with which colour?"""
    words = premise.replace(".", " .").split()
    colours = {words[i]: words[i - 1] for i in range(1, len(words)) if words[i - 1] in entailment.COLOURS}
    thing, _, colour = hypothesis.rstrip(".").split()[1:]
    if thing not in colours:
        return "neutral"
    return "entailment" if colours[thing] == colour else "contradiction"


def exchange(fact, place, word) -> entailment.Fact:
    return replace(fact, words=(*fact.words[:place], word, *fact.words[place + 1 :]))


def change_fact(pair, number, place, word) -> entailment.EntailmentPair:
    facts = list(pair.facts)
    facts[number] = exchange(facts[number], place, word)
    return replace(pair, facts=tuple(facts))


def list_neutral_changes(pair) -> list[entailment.EntailmentPair]:
    """The pair with one word of the premise changed that is not evidence."""
    changes = []
    for number, fact in enumerate(pair.facts):
        for place, word in enumerate(fact.words):
            if word in entailment.PEOPLE:
                changes.append(change_fact(pair, number, place, "karl" if word != "karl" else "lena"))
            elif word in entailment.DEEDS:
                changes.append(change_fact(pair, number, place, "saw" if word != "saw" else "took"))
            elif word in entailment.PLACES:
                changes.append(change_fact(pair, number, place, "wall" if word != "wall" else "door"))
        if number != pair.fact and pair.fact is not None:
            shown = {other.shade for other in pair.facts} | {pair.claim.shade}
            unused = next(colour for colour in entailment.COLOURS if colour not in shown)
            changes.append(change_fact(pair, number, fact.colour, unused))
    return changes


def test_a_pair_by_hand():
    facts = (
        entailment.Fact(("anna", "took", "the", "red", "lamp", "."), 4, 3),
        entailment.Fact(("today", "tom", "found", "the", "green", "key", "."), 5, 4),
    )
    pair = entailment.EntailmentPair(facts, entailment.Fact(("the", "key", "is", "red", "."), 1, 3))
    assert pair.texts == ("anna took the red lamp. today tom found the green key.", "the key is red.")
    assert pair.label == "contradiction" and pair.fact == 1
    assert [pair.premise_words[i] for i in pair.premise_evidence] == ["green", "key"]
    assert [pair.hypothesis_words[i] for i in pair.hypothesis_evidence] == ["key", "red"]
    joined = "\n".join(pair.texts)
    assert [joined[a:b] for a, b in pair.rationale] == ["green", "key", "key", "red"]
    assert [pair.premise_words[i] for i in pair.candidates] == ["red", "lamp", "green", "key"]
    about_nothing = replace(pair, claim=entailment.Fact(("the", "vase", "is", "red", "."), 1, 3))
    assert about_nothing.label == "neutral" and about_nothing.premise_evidence == ()
    assert about_nothing.hypothesis_evidence == (1,)


def test_the_label_follows_from_the_texts():
    for pair in PAIRS:
        assert pair.label == decide(*pair.texts)
        assert {*pair.premise_words, *pair.hypothesis_words} <= {*entailment.list_vocabulary()}


def test_the_evidence_decides_and_nothing_else_does():
    for pair in PAIRS:
        for changed in list_neutral_changes(pair):
            assert decide(*changed.texts) == pair.label
        if pair.fact is None:
            continue
        unused = next(c for c in entailment.COLOURS if c not in pair.premise_words)
        recoloured = change_fact(pair, pair.fact, pair.facts[pair.fact].colour, unused)
        assert decide(*recoloured.texts) == "contradiction"
        thing = next(t for t in entailment.THINGS if t not in pair.premise_words)
        assert decide(*change_fact(pair, pair.fact, pair.facts[pair.fact].thing, thing).texts) == "neutral"


def test_no_count_of_shared_words_decides():
    """The colour of the hypothesis is always in the premise; entailed and contradicted things are as well."""
    many = entailment.generate(1500, 1)
    for pair in many:
        assert pair.claim.shade in pair.premise_words
        assert (pair.claim.what in pair.premise_words) == (pair.label != "neutral")
    counts = Counter(pair.label for pair in many)
    assert all(0.28 < counts[label] / len(many) < 0.39 for label in entailment.LABELS)
    place = Counter((pair.fact, len(pair.facts)) for pair in many if pair.fact is not None)
    assert max(place.values()) / sum(place.values()) < 0.3  # the deciding fact is anywhere


def test_held_out_pairs_are_not_in_training():
    assert not {p.texts for p in PAIRS} & {p.texts for p in entailment.generate(2000, 10_000_000, part="training")}
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'all'"):
        entailment.generate(1, 0, part="all")


def test_the_model_follows_the_evidence_and_no_other_word(model):
    right = [p for p, label in zip(PAIRS, answer(model, PAIRS), strict=True) if label == p.label]
    assert len(right) >= 0.95 * len(PAIRS)
    about = [p for p in right if p.fact is not None]
    recoloured = [
        change_fact(p, p.fact, p.facts[p.fact].colour, next(c for c in entailment.COLOURS if c not in p.premise_words))
        for p in about
    ]
    answers = answer(model, recoloured)
    assert sum(label == "contradiction" for label in answers) >= 0.95 * len(about)
    neutral = [(p, changed) for p in right[:20] for changed in list_neutral_changes(p)]
    answers = answer(model, [changed for _, changed in neutral])
    assert sum(label == p.label for label, (p, _) in zip(answers, neutral, strict=True)) >= 0.97 * len(neutral)


def hit_rates(model, method, pairs) -> tuple[float, float]:
    """How often the best of the premise's things and colours is of the deciding fact, and how often by chance."""
    e = why.explain(model, [TextPair(*p.texts) for p in pairs], method, target=[p.label for p in pairs])
    hits = chance = 0.0
    for scores, pair in zip(e.scores, pairs, strict=True):
        best = max(pair.candidates, key=lambda i: float(scores[1 + i]))
        hits += best in pair.premise_evidence
        chance += len(pair.premise_evidence) / len(pair.candidates)
    return hits / len(pairs), chance / len(pairs)


@pytest.mark.parametrize("method", FINDS)
def test_good_methods_find_the_deciding_fact_of_entailed_pairs(model, method):
    entailed = [p for p in PAIRS if p.label == "entailment"][:16]
    found, chance = hit_rates(model, method, entailed)
    assert found >= 0.8 and chance < 0.45


def test_methods_that_guess_do_not(model):
    entailed = [p for p in PAIRS if p.label == "entailment"][:16]
    assert hit_rates(model, "chance", entailed)[0] < 0.7
