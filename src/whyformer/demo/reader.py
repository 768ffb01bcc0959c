"""Passages and a question that one of them answers: which passage, which sentence and which words are known.

    Anna Reed lives in Lisbon and works as a baker. She keeps a parrot.

    The Aurora sails under captain Anna Reed. It carries tea and left on 14 March.
    ...
    Question: Where does Anna Reed live?
    Answer: Lisbon

Four to ten passages of one to four sentences each state a few facts about a person, a ship, a fair, an exhibit or a
house. They are about few kinds of things and few names, so that other passages state the same relation of others, use
the same first names and places, and mention the person asked about. There are three kinds of question:

    direct     one passage states the answer, in one sentence
    chain      "Where does the captain of the Aurora live?" One passage names the captain, another the home. The answer
               says so in words: "Anna Reed lives in Lisbon"
    unstated   no passage states it; the answer is "The passages do not say"

One fact in five (a subject, a relation and a value), selected by a checksum, is held out of all training. By default
`generate` asks for those, so that the bundled model cannot know the answer from training: it must read it.
"""

import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from whyformer.demo.agreement import PARTS, Part
from whyformer.demo.ranges import refuse_outside_range
from whyformer.demo.reader_words import (
    CITIES,
    EXHIBITS,
    FAIRS,
    FILLERS,
    GATHERINGS,
    HOUSES,
    LAST_NAMES,
    MATERIALS,
    MEN,
    OPENINGS,
    RELATIONS,
    SHIPS,
    SYSTEM_PROMPTS,
    TOPICS,
    TRADES,
    UNSTATED,
    VALUES,
    WOMEN,
)
from whyformer.errors import InputError

QuestionKind = Literal["direct", "chain", "unstated"]
QUESTION_KINDS = get_args(QuestionKind)
FEWEST, MOST = 2, 10  # passages
SLOT = re.compile(r"{([^}]*)}")
Span = tuple[int, int]  # characters, end not included
T = TypeVar("T")


@dataclass(frozen=True)
class PassageFact:
    """Something that a passage states of its subject."""

    relation: str  # a key of RELATIONS
    value: str
    clause: str  # as it is worded, the subject left out: "lives in Lisbon"
    sentence: int  # which sentence of the passage
    start: int  # of the value, in characters of the passage

    @property
    def span(self) -> Span:
        return self.start, self.start + len(self.value)


@dataclass(frozen=True)
class Passage:
    """A paragraph about one subject."""

    topic: str  # a key of TOPICS
    subject: str  # as in a question: "Anna Reed", "the Aurora"
    text: str
    sentences: tuple[Span, ...]
    facts: tuple[PassageFact, ...]


@dataclass(frozen=True)
class PassageQuestion:
    """A question about passages. `sources` are (passage, fact) indices: one for a direct question, two for a chain."""

    passages: tuple[Passage, ...]
    kind: QuestionKind
    question: str
    answer: str
    sources: tuple[tuple[int, int], ...]

    @property
    def context(self) -> str:
        """The passages, with an empty line between them."""
        return "\n\n".join(passage.text for passage in self.passages)

    @property
    def text(self) -> str:
        """The prompt, up to where the answer begins."""
        return f"{self.context}\n\nQuestion: {self.question}\nAnswer:"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The same as a chat."""
        user = f"{self.context}\n\n{self.question}"
        return [{"role": "system", "content": SYSTEM_PROMPTS[0]}, {"role": "user", "content": user}]

    @property
    def source(self) -> int | None:
        """The passage that states the answer; None if none does. For a chain, the last one."""
        return self.sources[-1][0] if self.sources else None

    @property
    def passage_spans(self) -> tuple[Span, ...]:
        """Where each passage is in `text`."""
        spans, start = [], 0
        for passage in self.passages:
            spans.append((start, start + len(passage.text)))
            start += len(passage.text) + 2
        return tuple(spans)

    @property
    def sentence_spans(self) -> tuple[Span, ...]:
        """The sentences of `text` that decide the answer, one for each source."""
        return tuple(
            self._shift(place, self.passages[place].sentences[self.passages[place].facts[fact].sentence])
            for place, fact in self.sources
        )

    @property
    def evidence_spans(self) -> tuple[Span, ...]:
        """The words of `text` that state the answer, one span for each source."""
        return tuple(self._shift(place, self.passages[place].facts[fact].span) for place, fact in self.sources)

    def _shift(self, place: int, span: Span) -> Span:
        start = self.passage_spans[place][0]
        return start + span[0], start + span[1]


def generate(
    count: int, seed: int, *, kind: QuestionKind = "direct", passages: int | None = None, part: Part = "held-out"
) -> tuple[PassageQuestion, ...]:
    """`count` questions, each about its own passages (four to ten, or as many as given); question i depends only on
    `seed` and i."""
    refuse_outside_range("count", count, 0)
    if passages is not None:
        refuse_outside_range("passages", passages, FEWEST, MOST)
    for name, value, known in (("kind", kind, QUESTION_KINDS), ("part", part, PARTS)):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}.", code="E_OPTION")
    return tuple(_make_question(random.Random(f"reader {seed} {i}"), kind, passages, part) for i in range(count))


def part_of(subject: str, relation: str, value: str) -> Part:
    """The part that a fact belongs to."""
    return "held-out" if zlib.crc32(f"{subject}\n{relation}\n{value}".encode()) % 5 == 0 else "training"


def _make_question(rng: random.Random, kind: QuestionKind, count: int | None, part: Part) -> PassageQuestion:
    while True:
        passages = draw_passages(rng, 4 + _draw_index(rng, 7) if count is None else count, part)
        asked = [one for one in ask_everything(rng, passages, kind) if _belongs(one, part)]
        if asked:
            return _pick(rng, asked)


def _belongs(question: PassageQuestion, part: Part) -> bool:
    """Whether the fact that answers is of this part. What is not stated belongs to both."""
    if not question.sources:
        return True
    place, fact = question.sources[-1]
    passage = question.passages[place]
    return part_of(passage.subject, passage.facts[fact].relation, passage.facts[fact].value) == part


# --- passages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """The few names of one set of passages, so that they are shared."""

    women: tuple[str, ...]
    men: tuple[str, ...]
    last: tuple[str, ...]
    cities: tuple[str, ...]

    def draw_person(self, rng: random.Random) -> str:
        return f"{_pick(rng, _pick(rng, (self.women, self.men)))} {_pick(rng, self.last)}"


def draw_names(rng: random.Random, invented: Sequence[str] = ()) -> Names:
    """A few of each kind. Words of `invented` (two at most) take the place of a last name and of a city."""
    last, cities = _sample(rng, LAST_NAMES, 5), _sample(rng, CITIES, 9)
    last[: len(invented[:1])] = invented[:1]
    cities[: len(invented[1:2])] = invented[1:2]
    return Names(tuple(_sample(rng, WOMEN, 3)), tuple(_sample(rng, MEN, 3)), tuple(last), tuple(cities))


def draw_passages(
    rng: random.Random, count: int, part: Part = "held-out", names: Names | None = None
) -> tuple[Passage, ...]:
    """`count` passages about different subjects. For training, none states a fact that is held out."""
    names = draw_names(rng) if names is None else names
    kinds = ["person", *_sample(rng, [kind for kind in TOPICS if kind != "person"], 2)]
    subjects: dict[str, str] = {}
    while len(subjects) < count:
        kind = _pick(rng, kinds)
        subjects.setdefault(_draw_subject(rng, kind, names), kind)
    people = [subject for subject, kind in subjects.items() if kind == "person"]
    return tuple(_draw_passage(rng, kind, subject, names, people, part) for subject, kind in subjects.items())


def _draw_subject(rng: random.Random, topic: str, names: Names) -> str:
    if topic == "person":
        return names.draw_person(rng)
    lists = {"ship": (SHIPS,), "fair": (FAIRS, GATHERINGS), "exhibit": (MATERIALS, EXHIBITS), "house": (HOUSES, TRADES)}
    return " ".join(("the", *(_pick(rng, words) for words in lists[topic])))


def _draw_passage(
    rng: random.Random, topic: str, subject: str, names: Names, people: Sequence[str], part: Part
) -> Passage:
    clauses = _sample(rng, TOPICS[topic].clauses, 2 + _draw_index(rng, 3))
    text = ""
    sentences: list[Span] = []
    facts: list[PassageFact] = []
    while clauses:
        size = 1 + _draw_index(rng, 2)
        taken, clauses = clauses[:size], clauses[size:]
        text += " " if text else ""
        start = len(text)
        text += _open_sentence(rng, topic, subject, is_first=not sentences)
        for i, wordings in enumerate(taken):
            text += " and " if i else " "
            clause, stated = _fill_clause(rng, _pick(rng, wordings), subject, names, people, part)
            facts += [PassageFact(name, value, clause, len(sentences), len(text) + at) for name, value, at in stated]
            text += clause
        text += "."
        sentences.append((start, len(text)))
    if rng.random() < 0.15:
        start = len(text) + 1
        text += f" {_pick(rng, FILLERS)}"
        sentences.append((start, len(text)))
    return Passage(topic, subject, text, tuple(sentences), tuple(facts))


def _open_sentence(rng: random.Random, topic: str, subject: str, *, is_first: bool) -> str:
    """The subject or its pronoun, sometimes after "These days,"."""
    pronouns = TOPICS[topic].pronouns or (("She",) if subject.split()[0] in WOMEN else ("He",))
    named = subject if is_first or rng.random() < 0.2 else _pick(rng, pronouns)
    if rng.random() < 0.1:
        lower = named if named == subject else named[0].lower() + named[1:]
        return f"{_pick(rng, OPENINGS)}, {lower}"
    return named[0].upper() + named[1:]


def _fill_clause(
    rng: random.Random, wording: str, subject: str, names: Names, people: Sequence[str], part: Part
) -> tuple[str, list[tuple[str, str, int]]]:
    """The clause with values for its slots, and each (relation, value, place in the clause)."""
    clause, stated, end = "", [], 0
    for slot in SLOT.finditer(wording):
        clause += wording[end : slot.start()]
        value = _draw_fact(rng, slot[1], subject, names, people, part)
        stated.append((slot[1], value, len(clause)))
        clause += value
        end = slot.end()
    return clause + wording[end:], stated


def _draw_fact(rng: random.Random, relation: str, subject: str, names: Names, people: Sequence[str], part: Part) -> str:
    while True:
        value = _draw_value(rng, RELATIONS[relation].value, names, people)
        if value != subject and (part == "held-out" or part_of(subject, relation, value) == "training"):
            return value


def _draw_value(rng: random.Random, kind: str, names: Names, people: Sequence[str]) -> str:
    if kind == "person":  # often one that another passage is about
        return _pick(rng, people) if people and rng.random() < 0.5 else names.draw_person(rng)
    lists = (names.cities,) if kind == "city" else VALUES[kind]
    return " ".join(_pick(rng, words) for words in lists)


# --- questions --------------------------------------------------------------------------------------------------------


def ask_everything(rng: random.Random, passages: tuple[Passage, ...], kind: QuestionKind) -> Iterator[PassageQuestion]:
    """Every question of this kind that these passages allow, each in one of its wordings."""
    asking = {"direct": _ask_directly, "chain": _ask_in_chains, "unstated": _ask_for_more}[kind]
    for relation, subject, answer, sources in asking(passages):
        question = _pick(rng, RELATIONS[relation].questions).replace("{S}", subject)
        yield PassageQuestion(passages, kind, question, answer, sources)


Asked = tuple[str, str, str, tuple[tuple[int, int], ...]]  # relation, subject, answer, sources


def _ask_directly(passages: Sequence[Passage]) -> Iterator[Asked]:
    for place, passage in enumerate(passages):
        for i, fact in enumerate(passage.facts):
            yield fact.relation, passage.subject, fact.value, ((place, i),)


def _ask_in_chains(passages: Sequence[Passage]) -> Iterator[Asked]:
    subjects = {passage.subject: place for place, passage in enumerate(passages)}
    for place, passage in enumerate(passages):
        for i, link in enumerate(passage.facts):
            if RELATIONS[link.relation].link and link.value in subjects:
                last = subjects[link.value]
                for j, fact in enumerate(passages[last].facts):
                    subject = f"{RELATIONS[link.relation].link} {passage.subject}"
                    yield fact.relation, subject, f"{link.value} {fact.clause}", ((place, i), (last, j))


def _ask_for_more(passages: Sequence[Passage]) -> Iterator[Asked]:
    """What a passage could state of its subject, and does not."""
    for passage in passages:
        stated = {fact.relation for fact in passage.facts}
        for wordings in TOPICS[passage.topic].clauses:
            for relation in SLOT.findall(wordings[0]):
                if relation not in stated:
                    yield relation, passage.subject, UNSTATED, ()


def list_vocabulary() -> tuple[str, ...]:
    """Every word and punctuation mark that can occur in passages, questions and answers."""
    texts = [*WOMEN, *MEN, *LAST_NAMES, *SHIPS, *FAIRS, *GATHERINGS, *MATERIALS, *EXHIBITS, *HOUSES, *TRADES]
    texts += [word for lists in VALUES.values() for words in lists for word in words]
    texts += [wording for topic in TOPICS.values() for wordings in topic.clauses for wording in wordings]
    texts += [question for relation in RELATIONS.values() for question in (*relation.questions, relation.link)]
    texts += [pronoun for topic in TOPICS.values() for pronoun in topic.pronouns]
    texts += [*OPENINGS, *FILLERS, UNSTATED, *SYSTEM_PROMPTS, "Question: Answer: She He and the The she he"]
    words = (word for text in texts for word in re.findall(r"\w+|[^\w\s]", SLOT.sub(" ", text)))
    return tuple(dict.fromkeys(words))


def _sample(rng: random.Random, options: Sequence[T], count: int) -> list[T]:
    left = list(options)
    return [left.pop(_draw_index(rng, len(left))) for _ in range(count)]


def _pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[_draw_index(rng, len(options))]


def _draw_index(rng: random.Random, below: int) -> int:
    return int(rng.random() * below)  # random() gives the same numbers in every Python version; choice() does not
