"""Questions about sources: the truth of every claim, found again in the texts, and what training never states."""

import random
import re
from itertools import product

import pytest

from whyformer.demo.reader import SLOT, Passage, PassageFact, part_of_fact
from whyformer.errors import InputError
from whyformer_papers.worlds import sources
from whyformer_papers.worlds.sources_words import COUNTRIES, HARBOUR, SOURCE_WORLDS

CELLS = list(product(SOURCE_WORLDS, sources.SOURCE_KINDS))
every_cell = pytest.mark.parametrize(("world", "kind"), CELLS, ids=lambda value: value)


def read_passage(world, passage: Passage) -> set[tuple[str, str]]:
    """Every (relation, value) that can be read in the text, by patterns instead of the record."""
    stated = set()
    for wordings in world.topics[passage.topic].clauses:
        for wording in wordings:
            (relation,) = (name for name in SLOT.findall(wording) if name != "S")
            values = "|".join(map(re.escape, world.values[world.relations[relation].value]))
            named = "|".join(map(re.escape, (passage.subject, *world.topics[passage.topic].pronouns)))
            pattern = re.escape(wording).replace(r"\{S\}", f"(?:{named})")
            pattern = pattern.replace(re.escape(f"{{{relation}}}"), f"({values})")
            stated |= {(relation, found[1]) for found in re.finditer(rf"(?i)\b{pattern}(?=\.| and )", passage.text)}
    return stated


def answer_by_reading(asked: sources.SourceQuestion, query: sources.Query) -> list[tuple[tuple[int, ...], str]]:
    """What the passages answer, from their texts."""
    world = SOURCE_WORLDS[asked.world]
    read = [(i, p.subject, *fact) for i, p in enumerate(asked.passages) for fact in read_passage(world, p)]
    found = [((i,), value) for i, who, what, value in read if (who, what) == (query.subject, query.relations[0])]
    for relation in query.relations[1:]:
        found = [
            ((*at, i), value)
            for at, person in found
            for i, who, what, value in read
            if (who, what) == (person, relation)
        ]
    if query.is_coarse:
        found = [(at, world.coarser[world.relations[query.relations[-1]].value][value]) for at, value in found]
    return found


def make_ship(text: str, *facts: tuple[str, str]) -> Passage:
    places = tuple(PassageFact(relation, value, 0, text.index(value)) for relation, value in facts)
    return Passage("ship", "the Aurora", text, ((0, len(text)),), places)


def test_claims_by_hand():
    passages = (
        make_ship("The Aurora obeys captain Anna.", ("captain", "Anna")),
        Passage("person", "Anna", "Anna lives in Oslo.", ((0, 19),), (PassageFact("home", "Oslo", 0, 14),)),
        make_ship("The Aurora carries tea.", ("cargo", "tea")),
        make_ship("The Aurora is loaded with tea and left in May.", ("cargo", "tea"), ("departure", "May")),
        make_ship("The Aurora set sail in June.", ("departure", "June")),
    )
    ask = lambda *relations, **options: sources.Query("the Aurora", relations, **options)  # noqa: E731
    claim = lambda query, value, **options: sources.make_claim(HARBOUR, passages, query, value, **options)  # noqa: E731
    truth = lambda *given: (lambda made: (made.support, made.against))(claim(*given))  # noqa: E731
    assert truth(ask("captain"), "Anna") == (((0,),), ())
    assert truth(ask("captain"), "Boris") == ((), ((0,),))
    assert truth(ask("cargo"), "tea") == (((2,), (3,)), ())
    assert truth(ask("captain", "home"), "Oslo") == (((0, 1),), ())
    assert truth(ask("captain", "home"), "Rome") == ((), ((0, 1),))
    assert truth(ask("departure"), "May") == (((3,),), ((4,),))
    assert truth(ask("port"), sources.NOT_STATED) == truth(ask("captain", "pet"), "dog") == ((), ())
    assert truth(sources.Query("Anna", ("home",), is_coarse=True), "Norway") == (((1,),), ())
    sentence = claim(ask("captain", "home"), "Oslo", in_a_sentence=True)
    assert sentence.text == "The captain of the Aurora lives in Oslo."
    assert claim(ask("port"), sources.NOT_STATED, in_a_sentence=True).text == "Not stated."
    asked = sources.SourceQuestion(
        passages, "?", (claim(ask("cargo"), "tea", in_a_sentence=True), sentence), "sentences", "harbour"
    )
    assert asked.answer == "The Aurora carries tea. The captain of the Aurora lives in Oslo."
    assert [asked.answer[a:b] for a, b in asked.claim_spans] == [one.text for one in asked.claims]
    other = asked.answer_with(["salt", "Riga"])
    assert other.answer == "The Aurora carries salt. The captain of the Aurora lives in Riga."
    assert [one.against for one in other.claims] == [((2,), (3,)), ((0, 1),)]


@every_cell
def test_the_truth_is_what_the_texts_say(world, kind):
    """Also of wrong answers."""
    rng = random.Random(0)
    for asked in sources.generate(12, 1, world=world, kind=kind):
        for one in (asked, *(sources.answer_wrongly(asked, rng, is_stated=stated) for stated in (True, False))):
            for claim in one.claims if one else ():
                found = answer_by_reading(asked, claim.query)
                assert sorted(claim.support) == sorted(at for at, value in found if value == claim.value)
                assert sorted(claim.against) == sorted(at for at, value in found if value != claim.value)
                assert claim.value in claim.text or claim.value == sources.NOT_STATED


@every_cell
def test_a_kind_is_what_it_says(world, kind):
    for asked in sources.generate(12, 2, world=world, kind=kind):
        assert asked.kind == kind and 4 <= len(asked.passages) <= 12
        assert len({passage.text for passage in asked.passages}) == len(asked.passages)
        assert asked.answer == " ".join(claim.text for claim in asked.claims)
        sizes = [[len(one) for one in claim.support] for claim in asked.claims]
        values = [claim.value for claim in asked.claims]
        if kind == "sentences":
            assert 1 <= len(sizes) <= 3 and all(
                bool(size) == (v != "not stated") for size, v in zip(sizes, values, strict=True)
            )
            assert asked.question.endswith("? Answer in sentences.")
            continue
        (size,), (claim,) = sizes, asked.claims
        assert bool(claim.against) == (kind == "contradicted")
        if kind == "either":
            assert len(size) >= 2 and {*size} == {1}
        else:
            assert size == {"both": [2], "unanswerable": []}.get(kind, [1])
        if kind == "unanswerable":
            assert asked.answer == "not stated"
        elif kind == "reworded":
            assert not {*claim.value.split()} & {*re.findall(r"\w+", asked.passages[claim.support[0][0]].text)}
        else:
            assert all(claim.value in asked.passages[at[-1]].text for at in claim.support)


def test_wrong_answers_are_stated_of_something_else_or_nowhere():
    rng = random.Random(1)
    for asked in sources.generate(40, 3):
        elsewhere, nowhere = (sources.answer_wrongly(asked, rng, is_stated=stated) for stated in (True, False))
        for claim in nowhere.claims if nowhere else ():
            assert claim.value not in asked.context and not claim.support
        for claim in elsewhere.claims if elsewhere else ():
            assert not claim.support and (claim.query.is_coarse or claim.value in asked.context)


@pytest.mark.parametrize("world", SOURCE_WORLDS)
def test_what_decides_was_never_trained_on(world):
    for passages in (sources.draw_sources(random.Random(i), SOURCE_WORLDS[world], 8, "training") for i in range(40)):
        for passage in passages:
            assert all(part_of_fact(passage.subject, f.relation, f.value) == "training" for f in passage.facts)
    for asked in sources.generate(40, 4, world=world):
        for claim in asked.claims:
            for at in (*claim.support, *claim.against):
                who = claim.query.subject
                for i, relation in zip(at, claim.query.relations, strict=True):
                    (value,) = {f.value for f in asked.passages[i].facts if f.relation == relation}
                    assert part_of_fact(who, relation, value) == "held-out"
                    who = value


def test_a_source_question_depends_on_its_seed_and_number_only():
    assert sources.generate(3, 8) == sources.generate(5, 8)[:3] != sources.generate(3, 9)
    assert {len(asked.passages) for asked in sources.generate(3, 8, passages=50)} == {50}


def test_worlds_share_sentences_with_nobody_and_know_their_words():
    known = {*sources.SOURCE_VOCABULARY}
    for world, kind in CELLS:
        for asked in sources.generate(5, 5, world=world, kind=kind):
            assert {*re.findall(r"\w+|[^\w\s]", f"{asked.text} {asked.answer}")} <= known
    wordings = [
        w for world in SOURCE_WORLDS.values() for t in world.topics.values() for some in t.clauses for w in some
    ]
    questions = [q for world in SOURCE_WORLDS.values() for one in world.relations.values() for q in one.questions]
    assert len({*wordings}) == len(wordings) and len({*questions}) == len(questions)
    for world in SOURCE_WORLDS.values():
        assert all({*world.values[kind]} == {*table} for kind, table in world.coarser.items())
    assert COUNTRIES["Oslo"] == "Norway"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"world": "moon"}, "world must be one of harbour, valley, upland, got 'moon'"),
        (
            {"kind": "many"},
            "kind must be one of one, reworded, either, both, contradicted, unanswerable, sentences",
        ),
        ({"passages": 51}, "passages must be between 2 and 50, got 51"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_sources_that_cannot_be_generated_are_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        sources.generate(1, 0, **settings)
