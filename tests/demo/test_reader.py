"""The reader's world: one passage states the answer, where it does is known, and what is asked was not trained on."""

import random
import re

import pytest
import torch

from whyformer.data import read
from whyformer.data.worlds import WORLD_SEED
from whyformer.demo import reader
from whyformer.demo.reader_words import RELATIONS, TOPICS
from whyformer.errors import InputError

torch.set_num_threads(1)

ASKED = reader.generate(60, 3)


def list_stated(passages) -> set[tuple[str, str, str]]:
    """Every (subject, relation, value) that can be read in the texts, found with patterns instead of the record."""
    stated = set()
    for passage in passages:
        for wordings in TOPICS[passage.topic].clauses:
            for wording in wordings:
                relations = reader.SLOT.findall(wording)
                pattern = reader.SLOT.sub("@", wording)
                pattern = re.escape(pattern).replace("@", r"([A-Z0-9a-z ]+?)")
                for found in re.finditer(rf" {pattern}(?= and [a-z]|\.)", passage.text):
                    stated |= {
                        (passage.subject, name, value) for name, value in zip(relations, found.groups(), strict=True)
                    }
    return stated


def test_a_question_by_hand():
    ship = reader.Passage(
        "ship",
        "the Aurora",
        "The Aurora obeys captain Anna.",
        ((0, 30),),
        (reader.PassageFact("captain", "Anna", 0, 25),),
    )
    fair = reader.Passage(
        "fair", "the book fair", "The book fair opens in May. It is held in Oslo.", ((0, 27), (28, 47)),
        (reader.PassageFact("opening", "May", 0, 23), reader.PassageFact("place", "Oslo", 1, 42)),
    )  # fmt: skip
    asked = reader.PassageQuestion((ship, fair), "Where does the book fair take place?", "Oslo", 1, 1)
    assert asked.text == (
        "The Aurora obeys captain Anna.\n\nThe book fair opens in May. It is held in Oslo.\n\n"
        "Question: Where does the book fair take place?\nAnswer:"
    )
    assert [asked.text[a:b] for a, b in asked.passage_spans] == [ship.text, fair.text]
    assert asked.text[slice(*asked.sentence_span)] == "It is held in Oslo."
    assert asked.text[slice(*asked.evidence_span)] == "Oslo"
    assert asked.messages[1]["content"].endswith("\n\nWhere does the book fair take place?")
    every = {(one.question, one.answer, one.source) for one in reader.ask_everything(random.Random(0), (ship, fair))}
    assert {(answer, source) for _, answer, source in every} == {("Anna", 0), ("May", 1), ("Oslo", 1)}
    assert all(("the Aurora" in question) == (source == 0) for question, _, source in every)


def test_the_answer_is_where_the_truth_says():
    for asked in ASKED:
        passage, (start, end) = asked.passages[asked.source], asked.evidence_span
        assert asked.text[start:end] == asked.answer == passage.facts[asked.fact].value
        assert asked.sentence_span[0] <= start < end <= asked.sentence_span[1]
        assert asked.text[slice(*asked.sentence_span)].endswith(".")
        assert asked.text[slice(*asked.passage_spans[asked.source])] == passage.text
        assert 4 <= len(asked.passages) <= 10


def test_exactly_one_passage_states_the_answer():
    """Found by patterns in the texts alone: nothing else is said of this subject and relation, anywhere."""
    for asked in ASKED:
        passage = asked.passages[asked.source]
        relation = passage.facts[asked.fact].relation
        stated = {
            value for who, what, value in list_stated(asked.passages) if (who, what) == (passage.subject, relation)
        }
        assert stated == {asked.answer}
        assert len({passage.subject for passage in asked.passages}) == len(asked.passages)


def test_other_passages_mislead():
    """Most prompts have another passage that states the same relation, and nearly all one with a value of this kind."""
    rivals = alike = 0
    for asked in ASKED:
        passage = asked.passages[asked.source]
        relation = passage.facts[asked.fact].relation
        others = [fact.relation for other in asked.passages if other is not passage for fact in other.facts]
        rivals += relation in others
        alike += RELATIONS[relation].value in {RELATIONS[other].value for other in others}
    assert rivals > 0.6 * len(ASKED) and alike > 0.8 * len(ASKED)


def test_passages_that_are_alike_state_the_same_relations():
    for seed in range(20):
        passages = reader.draw_passages(random.Random(seed), 5, alike=True)
        assert len({(p.topic, tuple(sorted(fact.relation for fact in p.facts))) for p in passages}) == 1
        assert len({passage.subject.split()[1] for passage in passages}) == 5


def test_what_is_asked_was_never_trained_on():
    """No training passage states a held-out fact, and every held-out question asks for one."""
    for asked in ASKED:
        passage = asked.passages[asked.source]
        assert reader.part_of_fact(passage.subject, passage.facts[asked.fact].relation, asked.answer) == "held-out"
    for asked in reader.generate(60, 3, part="training"):
        for passage in asked.passages:
            for fact in passage.facts:
                assert reader.part_of_fact(passage.subject, fact.relation, fact.value) == "training"


def test_a_subject_without_a_training_value_is_not_drawn(monkeypatch):
    """Drawing values until one belongs to training would never end: other subjects are drawn instead."""
    known = reader.part_of_fact
    monkeypatch.setattr(
        reader, "part_of_fact", lambda subject, *fact: "held-out" if subject == "the Aurora" else known(subject, *fact)
    )
    subjects = [p.subject for asked in reader.generate(40, 5, part="training") for p in asked.passages]
    assert "the Aurora" not in subjects and len({*subjects}) > 50


def test_a_question_depends_on_its_seed_and_number_only():
    assert reader.generate(3, 8) == reader.generate(5, 8)[:3]
    assert reader.generate(1, 8) != reader.generate(1, 9)
    assert {len(asked.passages) for asked in reader.generate(5, 8, passages=2)} == {2}


def test_every_word_is_in_the_vocabulary():
    known = {*reader.VOCABULARY}
    for asked in ASKED:
        assert {*re.findall(r"\w+|[^\w\s]", f"{asked.text} {asked.answer}")} <= known


def test_the_world_is_read_by_name_with_the_answer_marked():
    data = read("demo/reader", limit=5)
    assert data.fingerprint() == read("demo/reader", limit=5).fingerprint() and len(data) == 5
    for example, asked in zip(data.examples, reader.generate(5, WORLD_SEED), strict=True):
        (span,) = example.rationale
        assert example.content == asked.text and example.content[slice(*span)] == asked.answer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": -1}, "count must be >= 0, got -1"),
        ({"passages": 1}, "passages must be between 2 and 10, got 1"),
        ({"part": "all"}, "part must be one of held-out, training, got 'all'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_generated_is_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        reader.generate(**{"count": 1, "seed": 0} | settings)
