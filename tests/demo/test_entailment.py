"""The entailment world and its model: the evidence is in both texts, and no other word decides."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import whyformer as why
from whyformer import TextPair
from whyformer.errors import InputError
from whyformer_papers.worlds import entailment

torch.set_num_threads(1)

PAIRS = entailment.generate(60, 0)
FINDS = ("leave_one_out", "libragrad", "lrp_gamma")  # must find the deciding word of the premise


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/entailment")


def answer(model, pairs) -> list[str]:
    """The label that the model gives each pair."""
    with torch.no_grad():
        best = model.module(**model.encode([TextPair(*pair.texts) for pair in pairs]).inputs).logits.argmax(-1)
    return [entailment.LABELS[i] for i in best.tolist()]


def decide(premise: str, hypothesis: str) -> str:
    """The definition, from the texts alone."""
    words, claimed = set(premise.replace(".", " ").split()), hypothesis.rstrip(".").split()[-1]
    if claimed in words:
        return "entailment"
    return "contradiction" if entailment.OPPOSITE_OF[claimed] in words else "neutral"


def change_word(pair, number, place, word) -> entailment.EntailmentPair:
    """The pair with one word of one fact exchanged."""
    facts = list(pair.facts)
    words = facts[number].words
    facts[number] = replace(facts[number], words=(*words[:place], word, *words[place + 1 :]))
    return replace(pair, facts=tuple(facts))


def turn_evidence(pair) -> entailment.EntailmentPair:
    """The pair with the deciding property of the premise turned into its opposite."""
    fact = pair.facts[pair.fact]
    return change_word(pair, pair.fact, fact.place, entailment.OPPOSITE_OF[fact.property])


def list_neutral_changes(pair) -> list[entailment.EntailmentPair]:
    """The pair with one word of the premise changed that is not evidence: other properties to their opposites."""
    changes = []
    for number, fact in enumerate(pair.facts):
        for place, word in enumerate(fact.words):
            if word in entailment.VERBS:
                changes.append(change_word(pair, number, place, "looks" if word != "looks" else "is"))
            elif word in entailment.ADVERBS:
                changes.append(change_word(pair, number, place, "very" if word != "very" else "still"))
            elif place == fact.place and number != pair.fact:
                changes.append(change_word(pair, number, place, entailment.OPPOSITE_OF[word]))
    return changes


def test_a_pair_by_hand():
    facts = (
        entailment.Fact(("the", "lamp", "is", "still", "old", "."), 4),
        entailment.Fact(("today", "it", "looks", "wet", "."), 3),
    )
    pair = entailment.EntailmentPair(facts, entailment.Fact(("the", "lamp", "is", "dry", "."), 3))
    assert pair.texts == ("the lamp is still old. today it looks wet.", "the lamp is dry.")
    assert pair.label == "contradiction" and pair.fact == 1
    assert [pair.premise_words[i] for i in pair.premise_evidence] == ["wet"]
    assert [pair.hypothesis_words[i] for i in pair.hypothesis_evidence] == ["dry"]
    assert ["\n".join(pair.texts)[a:b] for a, b in pair.rationale] == ["wet", "dry"]
    assert [pair.premise_words[i] for i in pair.candidates] == ["old", "wet"]
    about_nothing = replace(pair, claim=entailment.Fact(("the", "lamp", "is", "clean", "."), 3))
    assert about_nothing.label == "neutral" and about_nothing.premise_evidence == ()


def test_the_label_follows_from_the_texts():
    for pair in PAIRS:
        assert pair.label == decide(*pair.texts)
        assert {*pair.premise_words, *pair.hypothesis_words} <= {*entailment.VOCABULARY}
        assert pair.premise.split(".")[0].split()[-1] in entailment.OPPOSITE_OF


def test_the_evidence_decides_and_nothing_else_does():
    turned = {"entailment": "contradiction", "contradiction": "entailment"}
    for pair in PAIRS:
        assert all(decide(*changed.texts) == pair.label for changed in list_neutral_changes(pair))
        if pair.fact is not None:
            assert decide(*turn_evidence(pair).texts) == turned[pair.label]


def test_neither_text_alone_tells_the_label():
    """The claimed property, the number of facts and the place of the deciding one are independent of the label."""
    many = entailment.generate(3000, 1)
    counts = Counter(pair.label for pair in many)
    assert all(0.3 < counts[label] / len(many) < 0.37 for label in entailment.LABELS)
    for fact_of in (lambda p: p.claim.property, lambda p: len(p.facts), lambda p: p.claim.words[1]):
        both, alone = Counter((fact_of(p), p.label) for p in many), Counter(fact_of(p) for p in many)
        assert max(count / alone[fact] for (fact, _), count in both.items()) < 0.55  # about 75 pairs a property
    places = Counter(pair.fact / (len(pair.facts) - 1) for pair in many if pair.fact is not None)
    assert max(places.values()) / sum(places.values()) < 0.45


def test_held_out_pairs_are_not_in_training():
    assert not {p.texts for p in PAIRS} & {p.texts for p in entailment.generate(2000, 10_000_000, part="training")}
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'all'"):
        entailment.generate(1, 0, part="all")


def test_the_model_follows_the_evidence_and_no_other_word(model):
    right = [p for p, label in zip(PAIRS, answer(model, PAIRS), strict=True) if label == p.label]
    assert len(right) >= 0.95 * len(PAIRS)
    about = [p for p in right if p.fact is not None]
    turned = {"entailment": "contradiction", "contradiction": "entailment"}
    answers = answer(model, [turn_evidence(p) for p in about])
    assert sum(label == turned[p.label] for label, p in zip(answers, about, strict=True)) >= 0.95 * len(about)
    neutral = [(p, changed) for p in right[:20] for changed in list_neutral_changes(p)]
    answers = answer(model, [changed for _, changed in neutral])
    assert sum(label == p.label for label, (p, _) in zip(answers, neutral, strict=True)) >= 0.97 * len(neutral)


def hit_rates(model, method, pairs) -> tuple[float, float]:
    """How often the deciding property is the best of the premise's properties, and how often by chance."""
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
