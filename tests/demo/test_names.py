"""The world of names and its tagger: one word decides the kind of a name, and no other word does."""

from collections import Counter

import pytest
import torch

import whyformer
from whyformer.errors import InputError
from whyformer_papers.worlds import names

torch.set_num_threads(1)

SENTENCES = names.generate(60, 0)
KIND_OF = {trigger: kind for kind, triggers in names.TRIGGERS.items() for trigger in triggers}
FILLER, MASK, MASK_ID = "curtain", "[MASK]", 4


@pytest.fixture(scope="module")
def tagger() -> whyformer.Model:
    return whyformer.open("demo/names")


def find_tags(model, sentences, places) -> list[str]:
    """The tag of the word at each place. MASK stands for the mask token, which a text cannot hold for a tagger."""
    inputs = model.encode(
        [names.write_named([FILLER if w == MASK else w for w in words]) for words in sentences]
    ).inputs
    for ids, words in zip(inputs["input_ids"], sentences, strict=True):
        for i, word in enumerate(words):
            if word == MASK:
                ids[i + 1] = MASK_ID
    with torch.no_grad():
        best = model.module(**inputs).logits.argmax(-1)
    return [names.LABELS[int(best[i, place + 1])] for i, place in enumerate(places)]


def read_kinds(words, name) -> list[str]:
    """The definition: the kinds of the triggers in the clause of the name."""
    clause = words[:name].count(";")
    return [KIND_OF[word] for i, word in enumerate(words) if word in KIND_OF and words[:i].count(";") == clause]


def exchange(words, i, word) -> list[str]:
    return [*words[:i], word, *words[i + 1 :]]


def change_trigger(sentence) -> tuple[list[str], str]:
    """The words with a trigger of another kind, and that kind."""
    kind = next(kind for kind in names.TRIGGERS if kind != sentence.label)
    return exchange(sentence.words, sentence.evidence, names.TRIGGERS[kind][0]), kind


def list_neutral_changes(sentence) -> list[list[str]]:
    """The sentence with one other word changed: fillers also to a mask, names to others, the decoy to every kind."""
    changes = []
    for i, word in enumerate(sentence.words[:-1]):
        if i == sentence.decoy:
            changes += [exchange(sentence.words, i, triggers[3]) for triggers in names.TRIGGERS.values()]
        elif word in names.NAMES:
            changes += [exchange(sentence.words, i, next(n for n in names.NAMES if n not in sentence.words))]
        elif i != sentence.evidence and word != ";":
            changes += [exchange(sentence.words, i, FILLER), exchange(sentence.words, i, MASK)]
    return changes


def test_sentences_by_hand():
    one, two = SENTENCES[1], SENTENCES[2]
    assert one.text == "a small valley in summer without any doubt was yesterday at first called garo perhaps."
    assert (one.words[one.name], one.label, one.words[one.evidence], one.decoy) == ("garo", "LOC", "valley", None)
    assert two.text == "wendal was near the window a town in summer; garo like a song was a quiet village as always."
    assert (two.name, two.label, two.evidence, two.decoy) == (0, "LOC", 6, 17)
    assert [two.tags[i] for i in (0, 10)] == ["LOC", "LOC"] and two.tags.count("O") == len(two.words) - 2


def test_the_evidence_is_unique():
    """Changing the trigger changes the kind; changing any other word does not."""
    for sentence in SENTENCES:
        assert read_kinds(sentence.words, sentence.name) == [sentence.label]
        assert sentence.words[sentence.evidence] in names.TRIGGERS[sentence.label]
        words, kind = change_trigger(sentence)
        assert read_kinds(words, sentence.name) == [kind] != [sentence.label]
        for changed in list_neutral_changes(sentence):
            assert read_kinds(changed, sentence.name) == [sentence.label]


def test_names_and_triggers_come_in_the_same_order():
    """So the semicolon is not needed to know whose trigger is whose."""
    for sentence in SENTENCES:
        kinds = [KIND_OF[word] for word in sentence.words if word in KIND_OF]
        assert kinds == [tag for tag in sentence.tags if tag != "O"]
        assert [i for i, word in enumerate(sentence.words) if word in names.NAMES] == [
            i for i, tag in enumerate(sentence.tags) if tag != "O"
        ]
        assert {*sentence.words} <= {*names.VOCABULARY}
        assert (sentence.decoy is None) == (len(kinds) == 1)


def test_nothing_else_tells_the_kind():
    """Names, decoys and the side of the trigger are independent of the kind, and the trigger is seldom at one place."""
    many = names.generate(3000, 1)

    def largest_share(facts) -> float:
        """The share of the most frequent kind given the fact, the largest over all facts."""
        counts = Counter(facts)
        totals = Counter(fact for fact, _ in facts)
        return max(count / totals[fact] for (fact, _), count in counts.items())

    assert largest_share([(s.words[s.name], s.label) for s in many]) < 0.5  # about 115 sentences a name
    assert largest_share([(KIND_OF[s.words[s.decoy]], s.label) for s in many if s.decoy]) < 0.4
    assert largest_share([(s.evidence < s.name, s.label) for s in many]) < 0.4
    for places in ([s.evidence for s in many], [s.evidence - len(s.words) for s in many]):
        assert Counter(places).most_common(1)[0][1] / len(many) < 0.15
    assert Counter(s.evidence - s.name for s in many).most_common(1)[0][1] / len(many) < 0.15


def test_held_out_sentences_are_not_in_training():
    assert not {s.words for s in SENTENCES} & {s.words for s in names.generate(2000, 10_000_000, part="training")}
    with pytest.raises(InputError, match="part must be one of held-out, training, got 'all'"):
        names.generate(1, 0, part="all")


def test_the_tagger_follows_the_trigger_and_no_other_word(tagger):
    assert tagger.tokenizer.convert_ids_to_tokens(MASK_ID) == MASK
    tags = find_tags(tagger, [s.words for s in SENTENCES], [s.name for s in SENTENCES])
    right = [s for s, tag in zip(SENTENCES, tags, strict=True) if tag == s.label]
    assert len(right) >= 59
    changed = [change_trigger(s) for s in right]
    tags = find_tags(tagger, [words for words, _ in changed], [s.name for s in right])
    assert sum(tag == kind for tag, (_, kind) in zip(tags, changed, strict=True)) >= 0.98 * len(right)
    neutral = [(s, words) for s in right[:20] for words in list_neutral_changes(s)]
    tags = find_tags(tagger, [words for _, words in neutral], [s.name for s, _ in neutral])
    assert sum(tag == s.label for tag, (s, _) in zip(tags, neutral, strict=True)) >= 0.99 * len(neutral)
