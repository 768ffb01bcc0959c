"""Passages and a question that one of them answers: which passage, which sentence and which words are known.

    The Aurora sails under captain Anna. It left in March and carries tea.

    The lantern fair is held in Lisbon. It was planned by Peter and opens in May.
    ...
    Question: What does the Aurora carry?
    Answer: tea

Four to ten passages of one to three sentences each state a few facts about a ship, a fair, an exhibit or a house.
Exactly one passage states the answer, in one sentence. The passages are about two or three kinds of things, so that
three prompts in four have another one that states the same relation of something else. Passages share people, cities
and other values. A value is one word, or a price; within a prompt one word tells a subject from all others.

One fact in five (a subject, a relation and a value), selected by a checksum, is held out of all training. By default
`generate` asks for those, so that the bundled model cannot know the answer from training: it must read it.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from whyformer.demo.draws import Part, draw_index, draw_some, generate_part, part_of, pick, refuse_outside_range, take
from whyformer.demo.reader_words import (
    CITIES,
    FILLERS,
    NAMES,
    OPENINGS,
    RELATIONS,
    SUBJECTS,
    SYSTEM_PROMPTS,
    TOPICS,
    VALUES,
)

FEWEST, MOST = 2, 10  # passages
SLOT = re.compile(r"{([^}]*)}")
TEXTS = (
    [*NAMES, *(word for lists in SUBJECTS.values() for words in lists for word in words)]
    + [word for words in VALUES.values() for word in words]
    + [wording for topic in TOPICS.values() for wordings in topic.clauses for wording in wordings]
    + [question for relation in RELATIONS.values() for question in relation.questions]
    + [pronoun for topic in TOPICS.values() for pronoun in topic.pronouns]
    + [*OPENINGS, *FILLERS, *SYSTEM_PROMPTS, "Question: Answer: and the The"]
)
VOCABULARY = tuple(  # every word and punctuation mark of passages, questions and answers
    dict.fromkeys(word for text in TEXTS for word in re.findall(r"\w+|[^\w\s]", SLOT.sub(" ", text)))
)
CharacterSpan = tuple[int, int]  # characters, end not included
Clauses = Sequence[tuple[str, ...]]  # each a choice of wordings
Words = Mapping[str, Sequence[str]]  # what a prompt may say, by kind of value


@dataclass(frozen=True)
class PassageFact:
    """Something that a passage states of its subject."""

    relation: str  # a key of RELATIONS
    value: str
    sentence: int  # which sentence of the passage
    start: int  # of the value, in characters of the passage

    @property
    def span(self) -> CharacterSpan:
        return self.start, self.start + len(self.value)


@dataclass(frozen=True)
class Passage:
    """A paragraph about one subject."""

    topic: str  # a key of TOPICS
    subject: str  # as in a question: "Anna Reed", "the Aurora"
    text: str
    sentences: tuple[CharacterSpan, ...]
    facts: tuple[PassageFact, ...]


@dataclass(frozen=True)
class AskedPassages:
    """Passages and a question about them, as a prompt."""

    passages: tuple[Passage, ...]
    question: str

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
    def passage_spans(self) -> tuple[CharacterSpan, ...]:
        """Where each passage is in `text`."""
        starts = accumulate((len(passage.text) + 2 for passage in self.passages), initial=0)
        return tuple((at, at + len(passage.text)) for at, passage in zip(starts, self.passages, strict=False))


@dataclass(frozen=True)
class PassageQuestion(AskedPassages):
    """A question about passages, of which one states the answer."""

    answer: str
    source: int  # the passage that states the answer
    fact: int  # which of its facts

    @property
    def sentence_span(self) -> CharacterSpan:
        """The sentence of `text` that states the answer."""
        passage = self.passages[self.source]
        return self._shift(passage.sentences[passage.facts[self.fact].sentence])

    @property
    def evidence_span(self) -> CharacterSpan:
        """The words of `text` that are the answer, where the passage states it."""
        return self._shift(self.passages[self.source].facts[self.fact].span)

    def _shift(self, span: CharacterSpan) -> CharacterSpan:
        start = self.passage_spans[self.source][0]
        return start + span[0], start + span[1]


def generate(
    count: int, seed: int, *, passages: int | None = None, part: Part = "held-out"
) -> tuple[PassageQuestion, ...]:
    """`count` questions, each about its own passages (four to ten, or as many as given); question i depends only on
    `seed` and i."""
    if passages is not None:
        refuse_outside_range("passages", passages, FEWEST, MOST)
    return generate_part(f"reader {seed}", count, part, partial(_draw_question, count=passages, part=part))


def part_of_fact(subject: str, relation: str, value: str) -> Part:
    return part_of(f"{subject}\n{relation}\n{value}")


def _draw_question(rng: random.Random, count: int | None, part: Part) -> PassageQuestion | None:
    passages = draw_passages(rng, 4 + draw_index(rng, 7) if count is None else count, part)
    asked = [one for one in ask_everything(rng, passages) if _find_part(one) == part]
    return pick(rng, asked) if asked else None


def _find_part(question: PassageQuestion) -> Part:
    passage = question.passages[question.source]
    return part_of_fact(passage.subject, passage.facts[question.fact].relation, question.answer)


# --- passages ---------------------------------------------------------------------------------------------------------


class NoTrainingValueError(Exception):
    """Every value of a relation of this subject is held out."""


def draw_passages(
    rng: random.Random, count: int, part: Part = "held-out", *, alike: bool = False
) -> tuple[Passage, ...]:
    """`count` passages about different subjects. For training, none states a fact that is held out.

    alike: all are about the same kind of thing and state the same relations, so that only the subject tells them apart.
    """
    while True:
        try:
            return _draw_passages(rng, count, part, alike)
        except NoTrainingValueError:
            continue


def _draw_passages(rng: random.Random, count: int, part: Part, alike: bool) -> tuple[Passage, ...]:
    # Six people and nine cities: few, so that passages share them.
    words = {**VALUES, "person": draw_some(rng, NAMES, 6), "city": draw_some(rng, CITIES, 9)}
    kinds = draw_some(rng, list(SUBJECTS), 1 if alike else 2 + draw_index(rng, 2))
    shared = draw_some(rng, TOPICS[kinds[0]].clauses, 1 + draw_index(rng, 2)) if alike else None
    left = {kind: list(SUBJECTS[kind][0]) for kind in kinds}
    passages = []
    for _ in range(count):
        topic = pick(rng, kinds)
        clauses = shared or draw_some(rng, TOPICS[topic].clauses, 2 + draw_index(rng, 2))
        passages.append(_draw_passage(rng, topic, _draw_subject(rng, topic, left[topic]), words, part, clauses))
    return tuple(passages)


def _draw_subject(rng: random.Random, topic: str, left: list[str]) -> str:
    """A subject whose first word is no other's."""
    return " ".join(("the", take(rng, left), *(pick(rng, words) for words in SUBJECTS[topic][1:])))


def _draw_passage(rng: random.Random, topic: str, subject: str, words: Words, part: Part, clauses: Clauses) -> Passage:
    text = ""
    sentences: list[CharacterSpan] = []
    facts: list[PassageFact] = []
    while clauses:
        size = 1 + draw_index(rng, 2)
        taken, clauses = clauses[:size], clauses[size:]
        text += " " if text else ""
        start = len(text)
        text += _open_sentence(rng, topic, subject, is_first=not sentences)
        for i, wordings in enumerate(taken):
            text += " and " if i else " "
            clause, stated = _fill_clause(rng, pick(rng, wordings), subject, words, part)
            facts += [PassageFact(name, value, len(sentences), len(text) + at) for name, value, at in stated]
            text += clause
        text += "."
        sentences.append((start, len(text)))
    if rng.random() < 0.15:
        start = len(text) + 1
        text += f" {pick(rng, FILLERS)}"
        sentences.append((start, len(text)))
    return Passage(topic, subject, text, tuple(sentences), tuple(facts))


def _open_sentence(rng: random.Random, topic: str, subject: str, *, is_first: bool) -> str:
    """The subject or its pronoun, sometimes after "These days,"."""
    named = subject if is_first or rng.random() < 0.2 else pick(rng, TOPICS[topic].pronouns)
    if rng.random() < 0.1:
        lower = named if named == subject else named[0].lower() + named[1:]
        return f"{pick(rng, OPENINGS)}, {lower}"
    return named[0].upper() + named[1:]


def _fill_clause(
    rng: random.Random, wording: str, subject: str, words: Words, part: Part
) -> tuple[str, list[tuple[str, str, int]]]:
    """The clause with values for its slots, and each (relation, value, place in the clause)."""
    clause, stated, end = "", [], 0
    for slot in SLOT.finditer(wording):
        clause += wording[end : slot.start()]
        value = _draw_stated_value(rng, slot[1], subject, words, part)
        stated.append((slot[1], value, len(clause)))
        clause += value
        end = slot.end()
    return clause + wording[end:], stated


def _draw_stated_value(rng: random.Random, relation: str, subject: str, words: Words, part: Part) -> str:
    for _ in range(100):
        value = pick(rng, words[RELATIONS[relation].value])
        if part == "held-out" or part_of_fact(subject, relation, value) == "training":
            return value
    raise NoTrainingValueError(f"{relation} of {subject}")


# --- questions --------------------------------------------------------------------------------------------------------


def ask_everything(rng: random.Random, passages: tuple[Passage, ...]) -> Iterator[PassageQuestion]:
    """Every question that these passages answer, each in one of its wordings."""
    for source, passage in enumerate(passages):
        for i, fact in enumerate(passage.facts):
            question = pick(rng, RELATIONS[fact.relation].questions).replace("{S}", passage.subject)
            yield PassageQuestion(passages, question, fact.value, source, i)
