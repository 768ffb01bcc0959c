"""Passages and questions of seven kinds, with the passages that decide each sentence of the answer.

    one           one passage states it
    reworded      one passage states it, and no word of the answer is in it: Oslo, and the answer is Norway
    either        two or three passages state it, in other words if there are any
    both          a chain over two: who the captain is, and where that person lives
    contradicted  two passages state different values; the answer is one of them
    unanswerable  no passage states it; the answer is "not stated"
    sentences     one to three questions, answered by a sentence each

A `Claim` is a short answer, or one sentence of a longer one, and has the truth: `support`, the sets of passages of
which each is enough, and `against`, the sets that state another value. `answer_wrongly` gives a question another answer
with the truth of that. Both are read off the facts of the passages, so they hold for any value:

    stated once   support ((3,),)                stated twice   support ((3,), (7,))
    a chain       support ((2, 5),)              not stated     support ()
    wrong value   support (), against ((3,),)    contradicted   support ((3,),), against ((7,),)

There are three worlds, `harbour`, `valley` and `upland` (see `sources_words`). Prompts have 4 to 12 passages by default
and up to 50. One fact in five (a subject, a relation and a value) is held out of all training; by default every fact
that decides is one of those.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Literal, get_args

from whyformer.demo.draws import Part, draw_index, draw_some, generate_part, pick, take
from whyformer.demo.ranges import refuse_outside_range
from whyformer.demo.reader import (
    SLOT,
    TEXTS,
    AskedPassages,
    CharacterSpan,
    NoTrainingValueError,
    Passage,
    PassageFact,
    part_of_fact,
)
from whyformer.demo.reader_words import FILLERS
from whyformer.errors import InputError
from whyformer_papers.worlds.sources_words import SOURCE_WORLDS, World

SourceKind = Literal["one", "reworded", "either", "both", "contradicted", "unanswerable", "sentences"]
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)
FEWEST_SOURCES, MOST_SOURCES = 2, 50
NOT_STATED = "not stated"
IN_SENTENCES = "Answer in sentences."
Sets = tuple[tuple[int, ...], ...]  # each: passages that state something together
Stated = Mapping[tuple[str, str], Sequence[tuple[int, str]]]  # (subject, relation) -> (passage, value) ...


@dataclass(frozen=True)
class Query:
    """What is asked for."""

    subject: str
    relations: tuple[str, ...]  # two: the second one is of the person who has the first to the subject
    is_coarse: bool = False  # asks for what the value is one of


@dataclass(frozen=True)
class Claim:
    """A short answer or one sentence of a longer one, and the passages that decide whether it is true."""

    text: str
    value: str  # what it says; NOT_STATED if it says that
    query: Query
    support: Sets
    against: Sets


@dataclass(frozen=True)
class SourceQuestion(AskedPassages):
    """Passages, a question of some kind about them, and an answer with its truth."""

    claims: tuple[Claim, ...]
    kind: SourceKind
    world: str

    @property
    def answer(self) -> str:
        return " ".join(claim.text for claim in self.claims)

    @property
    def claim_spans(self) -> tuple[CharacterSpan, ...]:
        """Where each claim is in `answer`."""
        ends = [len(" ".join(claim.text for claim in self.claims[: i + 1])) for i in range(len(self.claims))]
        return tuple((end - len(claim.text), end) for end, claim in zip(ends, self.claims, strict=True))

    def answer_with(self, values: Sequence[str]) -> "SourceQuestion":
        """The question with another value in each claim, and the truth of that."""
        world, whole = SOURCE_WORLDS[self.world], self.kind == "sentences"
        claims = [
            make_claim(world, self.passages, claim.query, value, in_a_sentence=whole)
            for claim, value in zip(self.claims, values, strict=True)
        ]
        return replace(self, claims=tuple(claims))


def generate(
    count: int,
    seed: int,
    *,
    world: str = "harbour",
    kind: SourceKind | None = None,
    passages: int | None = None,
    part: Part = "held-out",
) -> tuple[SourceQuestion, ...]:
    """`count` questions of one kind, or of any, each about its own passages; question i depends only on the other
    arguments and on i."""
    if world not in SOURCE_WORLDS:
        raise InputError(f"world must be one of {', '.join(SOURCE_WORLDS)}, got {world!r}.", code="E_OPTION")
    if kind is not None and kind not in SOURCE_KINDS:
        raise InputError(f"kind must be one of {', '.join(SOURCE_KINDS)}, got {kind!r}.", code="E_OPTION")
    if passages is not None:
        refuse_outside_range("passages", passages, FEWEST_SOURCES, MOST_SOURCES)
    draw = partial(_draw_source_question, world=SOURCE_WORLDS[world], wanted=kind, count=passages, part=part)
    return generate_part(f"sources {world} {kind} {passages} {seed}", count, part, draw)


def _draw_source_question(
    rng: random.Random, world: World, wanted: SourceKind | None, count: int | None, part: Part
) -> SourceQuestion | None:
    kind: SourceKind = wanted if wanted else pick(rng, SOURCE_KINDS)
    passages = draw_sources(rng, world, 4 + draw_index(rng, 9) if count is None else count, part)
    queries = list_queries(rng, world, passages, part)
    if kind == "sentences":
        return ask_in_sentences(rng, world, passages, queries)
    return ask(rng, world, passages, kind, pick(rng, queries[kind])) if queries[kind] else None


# --- the truth --------------------------------------------------------------------------------------------------------


def list_statements(passages: Sequence[Passage]) -> Stated:
    """Which passages state which value, by subject and relation."""
    stated = defaultdict(list)
    for i, passage in enumerate(passages):
        for fact in passage.facts:
            stated[passage.subject, fact.relation].append((i, fact.value))
    return stated


def find_values(world: World, stated: Stated, query: Query) -> list[tuple[tuple[int, ...], str]]:
    """Every answer that the passages give to a query, with the passages that give it."""
    found: list[tuple[tuple[int, ...], str]]
    found = [((i,), value) for i, value in stated.get((query.subject, query.relations[0]), ())]
    for relation in query.relations[1:]:
        found = [((*at, i), value) for at, person in found for i, value in stated.get((person, relation), ())]
    if query.is_coarse:
        table = world.coarser[world.relations[query.relations[-1]].value]
        return [(at, table[value]) for at, value in found]
    return found


def make_claim(
    world: World, passages: Sequence[Passage], query: Query, value: str, *, in_a_sentence: bool = False
) -> Claim:
    """A claim of any value, with its truth."""
    found = find_values(world, list_statements(passages), query)
    support = tuple(at for at, stated in found if stated == value)
    against = tuple(at for at, stated in found if stated != value)
    return Claim(_write_claim(world, query, value) if in_a_sentence else value, value, query, support, against)


def answer_wrongly(asked: SourceQuestion, rng: random.Random, *, is_stated: bool) -> SourceQuestion | None:
    """The question with wrong values: such that passages state them of something else, or such that none contains.

    None if there is no such value for one of the claims.
    """
    world, values = SOURCE_WORLDS[asked.world], []
    stated = list_statements(asked.passages)
    for claim in asked.claims:
        kind = world.relations[claim.query.relations[-1]].value
        right = {value for _, value in find_values(world, stated, claim.query)}
        options = [value for value in _list_options(world, kind, claim.query.is_coarse) if value not in right]
        elsewhere = {
            world.coarser[kind][value] if claim.query.is_coarse else value
            for (_, relation), places in stated.items()
            for _, value in places
            if world.relations[relation].value == kind
        }
        options = [value for value in options if (value in elsewhere) == is_stated]
        if not is_stated:
            options = [value for value in options if value not in asked.context]
        if not options:
            return None
        values.append(pick(rng, options))
    return asked.answer_with(values)


@cache
def _list_options(world: World, kind: str, is_coarse: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(world.coarser[kind].values())) if is_coarse else world.values[kind]


# --- questions --------------------------------------------------------------------------------------------------------


def list_queries(
    rng: random.Random, world: World, passages: Sequence[Passage], part: Part
) -> dict[SourceKind, list[Query]]:
    """What can be asked about these passages, by kind; all facts that decide an answer are of one part."""
    stated = list_statements(passages)
    queries: dict[SourceKind, list[Query]] = {kind: [] for kind in SOURCE_KINDS}
    for (subject, relation), places in stated.items():
        if any(part_of_fact(subject, relation, value) != part for _, value in places):
            continue
        values, query = {value for _, value in places}, Query(subject, (relation,))
        if len(places) == 1:
            queries["one"].append(query)
            if relation in world.coarse_questions:
                queries["reworded"].append(replace(query, is_coarse=True))
            if relation in world.roles:
                _add_chains(queries, world, stated, query, places[0][1], part)
        elif len(values) == 1:
            queries["either"].append(query)
        elif len(places) == 2:
            queries["contradicted"].append(query)
    queries["unanswerable"] += _list_unstated(rng, world, passages, stated)
    return queries


def _add_chains(
    queries: dict[SourceKind, list[Query]], world: World, stated: Stated, first: Query, person: str, part: Part
) -> None:
    """The chains over a person: those with an end, and those without."""
    for relation in _list_relations(world, "person"):
        both = Query(first.subject, (*first.relations, relation))
        places = stated.get((person, relation), ())
        if not places:
            queries["unanswerable"].append(both)
        elif len(places) == 1 and part_of_fact(person, relation, places[0][1]) == part:
            queries["both"].append(both)


def _list_unstated(rng: random.Random, world: World, passages: Sequence[Passage], stated: Stated) -> Iterator[Query]:
    """A relation that is not stated of each subject, and one of a subject that no passage is about."""
    topics = dict.fromkeys((passage.topic, passage.subject) for passage in passages)
    topic = pick(rng, passages).topic
    taken = {word for passage in passages for word in passage.subject.split()}
    free = [word for word in _list_first_words(world, topic) if word not in taken]
    absent = [(topic, _draw_name(rng, world, topic, free))] if free else []
    for topic, subject in (*topics, *absent):
        relations = [one for one in _list_relations(world, topic) if (subject, one) not in stated]
        if relations:
            yield Query(subject, (pick(rng, relations),))


@cache
def _list_relations(world: World, topic: str) -> tuple[str, ...]:
    return tuple(_find_relation(wordings[0]) for wordings in world.topics[topic].clauses)


def _find_relation(wording: str) -> str:
    return next(name for name in SLOT.findall(wording) if name != "S")


def ask(
    rng: random.Random, world: World, passages: tuple[Passage, ...], kind: SourceKind, query: Query
) -> SourceQuestion:
    """A query as a question with a short answer."""
    values = [value for _, value in find_values(world, list_statements(passages), query)]
    claim = make_claim(world, passages, query, pick(rng, values) if values else NOT_STATED)
    return SourceQuestion(passages, _write_question(rng, world, query), (claim,), kind, world.name)


def ask_in_sentences(
    rng: random.Random, world: World, passages: tuple[Passage, ...], queries: Mapping[SourceKind, Sequence[Query]]
) -> SourceQuestion | None:
    """One to three queries in one prompt, with a sentence as the answer to each."""
    stated = list_statements(passages)
    some = [one for kind in ("one", "either", "both") for one in queries[kind]]
    asked = draw_some(rng, some, min(len(some), 1 + draw_index(rng, 3)))
    if not asked:
        return None
    if rng.random() < 0.25 and queries["unanswerable"]:
        asked[draw_index(rng, len(asked))] = pick(rng, queries["unanswerable"])
    claims = []
    for query in asked:
        values = [value for _, value in find_values(world, stated, query)]
        claims.append(make_claim(world, passages, query, values[0] if values else NOT_STATED, in_a_sentence=True))
    question = " ".join((*(_write_question(rng, world, query) for query in asked), IN_SENTENCES))
    return SourceQuestion(passages, question, tuple(claims), "sentences", world.name)


def _name_subject(world: World, query: Query) -> str:
    """The subject, or "the captain of the Aurora"."""
    chained = len(query.relations) == 2
    return world.roles[query.relations[0]].replace("{S}", query.subject) if chained else query.subject


def _write_question(rng: random.Random, world: World, query: Query) -> str:
    last = query.relations[-1]
    wording = world.coarse_questions[last] if query.is_coarse else pick(rng, world.relations[last].questions)
    return wording.replace("{S}", _name_subject(world, query))


def _write_claim(world: World, query: Query, value: str) -> str:
    if value == NOT_STATED:
        return "Not stated."
    wording = _find_wording(world, query.relations[-1])
    text = wording.replace("{S}", _name_subject(world, query)).replace(f"{{{query.relations[-1]}}}", value)
    return f"{_capitalise(text)}."


@cache
def _find_wording(world: World, relation: str) -> str:
    """The first wording of a relation, as a whole sentence."""
    clauses = (wordings[0] for topic in world.topics.values() for wordings in topic.clauses)
    return _make_whole(next(one for one in clauses if f"{{{relation}}}" in one))


def _make_whole(wording: str) -> str:
    return wording if "{S}" in wording else f"{{S}} {wording}"


def _capitalise(text: str) -> str:
    return text[0].upper() + text[1:]


# --- passages ---------------------------------------------------------------------------------------------------------


def draw_sources(
    rng: random.Random, world: World, count: int, part: Part = "held-out", *, alike: bool = False
) -> tuple[Passage, ...]:
    """`count` passages of one to three facts each, some about the same subject. For training, none is held out.

    alike: passages about the same kind of thing state the same relations, so that only the subject tells them apart.
    """
    while True:
        try:
            passages = _draw_sources(rng, world, count, part, alike)
        except NoTrainingValueError:
            continue
        if len({passage.text for passage in passages}) == count:
            return passages


def _draw_sources(rng: random.Random, world: World, count: int, part: Part, alike: bool) -> tuple[Passage, ...]:
    things = list(world.subjects)
    things = draw_some(rng, things, min(len(things), 1 + draw_index(rng, 2) + count // 10))
    people = draw_some(rng, world.people, min(len(world.people), 4 + count // 3))
    first_words = {**{topic: _list_first_words(world, topic) for topic in things}, "person": people[:]}
    clauses = {topic: list(world.topics[topic].clauses) for topic in first_words}
    if alike:
        clauses = {topic: draw_some(rng, some, 2) for topic, some in clauses.items()}
    stated: dict[tuple[str, str], tuple[str, str]] = {}  # the wording and the value
    subjects: list[tuple[str, str]] = []
    passages = []
    for i in range(count):
        topic = "person" if i and rng.random() < 0.3 else pick(rng, things)
        again = bool(subjects) and rng.random() < 0.3
        if again or not first_words[topic]:
            topic, subject = pick(rng, subjects) if subjects else (topic, "")
        else:
            subject = _draw_name(rng, world, topic, first_words[topic])
            subjects.append((topic, subject))
        facts = []
        for wordings in _draw_clauses(rng, clauses[topic], subject, stated):
            relation = _find_relation(wordings[0])
            wording, value = pick(rng, wordings), _draw_value(rng, world, relation, subject, people, part)
            if (subject, relation) in stated and rng.random() < 0.5:
                earlier, value = stated[subject, relation]
                wording = pick(rng, [one for one in wordings if one != earlier] or wordings)
            stated[subject, relation] = (wording, value)
            facts.append((wording, relation, value))
        passages.append(_write_passage(rng, world, topic, subject, facts))
    return tuple(draw_some(rng, passages, len(passages)))


def _draw_clauses(
    rng: random.Random, clauses: Sequence[tuple[str, ...]], subject: str, stated: Iterable[tuple[str, str]]
) -> list[tuple[str, ...]]:
    """One to three clauses; of a subject that other passages are about, mostly one that they have too."""
    chosen = draw_some(rng, clauses, min(len(clauses), pick(rng, (1, 1, 1, 2, 2, 3))))
    known = [one for one in clauses if (subject, _find_relation(one[0])) in stated]
    if known and rng.random() < 0.8 and not any(one in known for one in chosen):
        chosen[draw_index(rng, len(chosen))] = pick(rng, known)
    return chosen


def _list_first_words(world: World, topic: str) -> list[str]:
    return list(world.people if topic == "person" else world.subjects[topic][0])


def _draw_name(rng: random.Random, world: World, topic: str, left: list[str]) -> str:
    """A subject whose first word is no other's."""
    words = [take(rng, left), *(pick(rng, some) for some in world.subjects.get(topic, ())[1:])]
    return " ".join(words if topic in world.bare else ["the", *words])


def _draw_value(
    rng: random.Random, world: World, relation: str, subject: str, people: Sequence[str], part: Part
) -> str:
    """A value that is of this part: always for training, mostly otherwise."""
    kind = world.relations[relation].value
    options = people if kind == "person" else world.values[kind]
    for _ in range(100):
        value = pick(rng, options)
        if part_of_fact(subject, relation, value) == part or (part == "held-out" and rng.random() < 0.3):
            return value
    raise NoTrainingValueError(f"{relation} of {subject}")


def _write_passage(
    rng: random.Random, world: World, topic: str, subject: str, facts: Sequence[tuple[str, str, str]]
) -> Passage:
    """One to three sentences that state facts, each given as (wording, relation, value)."""
    text = ""
    sentences: list[CharacterSpan] = []
    places: list[PassageFact] = []
    for i, (wording, relation, value) in enumerate(facts):
        if i and "{S}" not in wording and "{S}" not in facts[i - 1][0] and rng.random() < 0.4:
            text, (start, _) = f"{text[:-1]} and ", sentences.pop()  # instead of the full stop
        else:
            text, start = f"{text} " if text else "", len(text) + bool(text)
            wording = _make_whole(wording)
        pronouns = world.topics[topic].pronouns
        named = pick(rng, pronouns) if i and pronouns and rng.random() < 0.5 else subject
        before, after = wording.replace("{S}", named).split(f"{{{relation}}}")
        before = _capitalise(before) if before and start == len(text) else before
        places.append(PassageFact(relation, value, len(sentences), len(text) + len(before)))
        text += f"{before}{value}{after}."
        sentences.append((start, len(text)))
    if rng.random() < 0.05:
        sentences.append((len(text) + 1, len(text) + 1 + len(filler := pick(rng, FILLERS))))
        text += f" {filler}"
    return Passage(topic, subject, text, tuple(sentences), tuple(places))


def _list_texts(world: World) -> Iterator[str]:
    """Every text that prompts and answers of a world are made of."""
    yield from world.people
    yield from (word for lists in world.subjects.values() for words in lists for word in words)
    yield from (value for values in world.values.values() for value in values)
    yield from (word for table in world.coarser.values() for word in table.values())
    yield from (wording for topic in world.topics.values() for some in topic.clauses for wording in some)
    yield from (question for relation in world.relations.values() for question in relation.questions)
    yield from (*world.coarse_questions.values(), *world.roles.values())


SOURCE_VOCABULARY = tuple(  # every word and punctuation mark of all worlds
    dict.fromkeys(
        word
        for text in (*TEXTS, IN_SENTENCES, NOT_STATED, "Not", *chain(*map(_list_texts, SOURCE_WORLDS.values())))
        for word in re.findall(r"\w+|[^\w\s]", SLOT.sub(" ", text))
    )
)
