"""The reader's world: one passage states the answer, where it does is known, and what is asked was not trained on."""

import random
import re

import pytest
import torch

from whyformer.data import read
from whyformer.data.worlds import WORLD_SEED
from whyformer.demo import reader
from whyformer.demo.reader_words import RELATIONS, TOPICS, UNSTATED
from whyformer.errors import InputError

torch.set_num_threads(1)

DIRECT = reader.generate(60, 3)
CHAINS = reader.generate(30, 3, kind="chain")


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
    anna = reader.Passage(
        "person", "Anna Reed", "Anna Reed is a baker. She lives in Lisbon.", ((0, 21), (22, 42)),
        (
            reader.PassageFact("job", "baker", "is a baker", 0, 15),
            reader.PassageFact("home", "Lisbon", "lives in Lisbon", 1, 35),
        ),
    )  # fmt: skip
    ship = reader.Passage(
        "ship", "the Aurora", "The Aurora obeys captain Anna Reed.", ((0, 35),),
        (reader.PassageFact("captain", "Anna Reed", "obeys captain Anna Reed", 0, 25),),
    )  # fmt: skip
    asked = reader.PassageQuestion((ship, anna), "direct", "Where does Anna Reed live?", "Lisbon", ((1, 1),))
    assert asked.text == (
        "The Aurora obeys captain Anna Reed.\n\nAnna Reed is a baker. She lives in Lisbon.\n\n"
        "Question: Where does Anna Reed live?\nAnswer:"
    )
    assert asked.source == 1
    assert [asked.text[a:b] for a, b in asked.passage_spans] == [ship.text, anna.text]
    assert [asked.text[a:b] for a, b in asked.sentence_spans] == ["She lives in Lisbon."]
    assert [asked.text[a:b] for a, b in asked.evidence_spans] == ["Lisbon"]
    assert asked.messages[1]["content"].endswith("\n\nWhere does Anna Reed live?")
    chains = {one.question: one for one in reader.ask_everything(random.Random(0), (ship, anna), "chain")}
    assert len(chains) == 2  # the job and the home of the captain
    home = next(one for question, one in chains.items() if "live" in question)
    assert "the captain of the Aurora" in home.question
    assert home.answer == "Anna Reed lives in Lisbon" and home.sources == ((0, 0), (1, 1)) and home.source == 1
    more = list(reader.ask_everything(random.Random(0), (ship,), "unstated"))
    assert {one.answer for one in more} == {UNSTATED} and all(one.source is None for one in more)
    assert len(more) == 4  # cargo, port, departure, crew


def test_the_answer_is_where_the_truth_says():
    for asked in (*DIRECT, *CHAINS):
        for (start, end), (place, fact), sentence in zip(
            asked.evidence_spans, asked.sources, asked.sentence_spans, strict=True
        ):
            passage = asked.passages[place]
            assert asked.text[start:end] == passage.facts[fact].value
            assert sentence[0] <= start < end <= sentence[1]
            assert asked.text[slice(*sentence)].endswith(".")
            assert asked.text[slice(*asked.passage_spans[place])] == passage.text
        assert asked.text[slice(*asked.evidence_spans[-1])] in asked.answer
    assert all(4 <= len(asked.passages) <= 10 for asked in DIRECT)


def test_exactly_one_passage_states_the_answer():
    """Found by patterns in the texts alone: nothing else is said of this subject and relation, anywhere."""
    for asked in DIRECT:
        place, fact = asked.sources[0]
        subject, relation = asked.passages[place].subject, asked.passages[place].facts[fact].relation
        stated = {value for who, what, value in list_stated(asked.passages) if (who, what) == (subject, relation)}
        assert stated == {asked.answer}
        assert len({passage.subject for passage in asked.passages}) == len(asked.passages)


def test_other_passages_mislead():
    """Most questions have a passage that states the same relation of something else."""
    rivals = 0
    for asked in DIRECT:
        place, fact = asked.sources[0]
        relation = asked.passages[place].facts[fact].relation
        rivals += any(
            other.relation == relation for i, p in enumerate(asked.passages) if i != place for other in p.facts
        )
    assert rivals > 0.6 * len(DIRECT)


def test_a_chain_needs_two_passages():
    for asked in CHAINS:
        (first, link), (last, fact) = asked.sources
        assert first != last
        person = asked.passages[first].facts[link].value
        assert person == asked.passages[last].subject and person not in asked.question
        assert asked.answer == f"{person} {asked.passages[last].facts[fact].clause}"


def test_what_is_asked_was_never_trained_on():
    """No training passage states a held-out fact, and every held-out question asks for one."""
    for asked in DIRECT:
        place, fact = asked.sources[0]
        passage = asked.passages[place]
        assert reader.part_of(passage.subject, passage.facts[fact].relation, passage.facts[fact].value) == "held-out"
    for asked in reader.generate(60, 3, part="training"):
        for passage in asked.passages:
            for fact in passage.facts:
                assert reader.part_of(passage.subject, fact.relation, fact.value) == "training"


def test_unstated_is_not_stated():
    for asked in reader.generate(30, 3, kind="unstated"):
        relations = [name for name, known in RELATIONS.items() if any(
            asked.question == wording.replace("{S}", passage.subject)
            for wording in known.questions for passage in asked.passages
        )]  # fmt: skip
        asked_of = next(passage for passage in asked.passages if passage.subject in asked.question)
        assert len(relations) == 1 and relations[0] not in {fact.relation for fact in asked_of.facts}
        assert asked.answer == UNSTATED and asked.evidence_spans == ()


def test_a_question_depends_on_its_seed_and_number_only():
    assert reader.generate(3, 8) == reader.generate(5, 8)[:3]
    assert reader.generate(1, 8) != reader.generate(1, 9)
    assert {len(asked.passages) for asked in reader.generate(5, 8, passages=2)} == {2}


def test_every_word_is_in_the_vocabulary():
    known = {*reader.list_vocabulary()}
    for asked in (*DIRECT, *CHAINS):
        assert {*re.findall(r"\w+|[^\w\s]", f"{asked.text} {asked.answer}")} <= known


def test_the_world_is_read_by_name_with_the_passage_marked():
    data = read("demo/reader", limit=5)
    assert data.fingerprint() == read("demo/reader", limit=5).fingerprint() and len(data) == 5
    for example, asked in zip(data.examples, reader.generate(5, WORLD_SEED), strict=True):
        (span,) = example.rationale
        assert example.content == asked.text and example.content[slice(*span)] == asked.passages[asked.source].text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": -1}, "count must be >= 0, got -1"),
        ({"passages": 1}, "passages must be between 2 and 10, got 1"),
        ({"kind": "hard"}, "kind must be one of direct, chain, unstated, got 'hard'"),
        ({"part": "all"}, "part must be one of held-out, training, got 'all'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_generated_is_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        reader.generate(**{"count": 1, "seed": 0} | settings)
