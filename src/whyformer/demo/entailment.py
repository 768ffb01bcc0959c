"""Entailment with known evidence: a premise of several facts, and a hypothesis about one of them.

    premise     "anna is in the kitchen. today tom is alone in the old cellar. rosa is in the garden."
    hypothesis  "tom is in the cellar."   entailment:    the premise says so
                "tom is in the garden."   contradiction: it says something else about tom
                "karl is in the garden."  neutral:       it says nothing about karl

Everybody is in one place. The place of the hypothesis is always in the premise, in contradictions and neutral pairs in
the fact of somebody else, so that no count of shared words decides; the model has to find the fact of this person and
compare its place. So the evidence is known in both texts: the person and the place of the hypothesis, and the
person and the place of the one fact that is about this person. Without such a fact (neutral) the premise has no
evidence, and in the hypothesis only the person counts.

One pair in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from whyformer.demo.agreement import PARTS, Part, write_sentence
from whyformer.demo.ranges import refuse_outside_range
from whyformer.errors import InputError

LABELS = ("entailment", "neutral", "contradiction")
PEOPLE = """
    anna ben carla david emma felix greta henry ida jonas karl lena mila nora oscar paul rosa simon tom vera
""".split()
PLACES = """
    kitchen garden cellar attic library garage office hall stable tower bakery harbour school museum park chapel
""".split()
OPENINGS = "today now again still perhaps".split()
ADVERBS = "alone often happily usually".split()
ADJECTIVES = "old new quiet small bright dusty".split()
FACTS = (2, 3, 4)
T = TypeVar("T")


@dataclass(frozen=True)
class Fact:
    """Where one person is, as words."""

    words: tuple[str, ...]
    person: int  # indices into `words`
    place: int

    @property
    def who(self) -> str:
        return self.words[self.person]

    @property
    def where(self) -> str:
        return self.words[self.place]


@dataclass(frozen=True)
class EntailmentPair:
    """A premise and a hypothesis with known evidence. Positions are indices into the words of each text."""

    facts: tuple[Fact, ...]
    hypothesis_fact: Fact

    @property
    def premise_words(self) -> tuple[str, ...]:
        return tuple(word for fact in self.facts for word in fact.words)

    @property
    def hypothesis_words(self) -> tuple[str, ...]:
        return self.hypothesis_fact.words

    @property
    def premise(self) -> str:
        return write_sentence(self.premise_words)

    @property
    def hypothesis(self) -> str:
        return write_sentence(self.hypothesis_words)

    @property
    def texts(self) -> tuple[str, str]:
        """What a model takes. Word i of the premise is token i + 1, after [CLS]."""
        return self.premise, self.hypothesis

    @property
    def fact(self) -> int | None:
        """Which fact is about the person of the hypothesis; None if none is."""
        people = [fact.who for fact in self.facts]
        return people.index(self.hypothesis_fact.who) if self.hypothesis_fact.who in people else None

    @property
    def label(self) -> str:
        """One of LABELS, decided from the facts."""
        if self.fact is None:
            return "neutral"
        return "entailment" if self.facts[self.fact].where == self.hypothesis_fact.where else "contradiction"

    @property
    def premise_evidence(self) -> tuple[int, ...]:
        """The person and the place of the deciding fact; nothing if there is none."""
        if self.fact is None:
            return ()
        start = sum(len(fact.words) for fact in self.facts[: self.fact])
        return start + self.facts[self.fact].person, start + self.facts[self.fact].place

    @property
    def hypothesis_evidence(self) -> tuple[int, ...]:
        """The person and the place that are compared; without a fact about this person, only the person."""
        person = self.hypothesis_fact.person
        return (person,) if self.fact is None else (person, self.hypothesis_fact.place)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The people and places of the premise: the words that could have been evidence."""
        places, start = [], 0
        for fact in self.facts:
            places += [start + fact.person, start + fact.place]
            start += len(fact.words)
        return tuple(places)

    @property
    def rationale(self) -> tuple[tuple[int, int], ...]:
        """The evidence as spans of characters of both texts joined by a line break, as data sets have them."""
        premise = find_word_spans(self.premise, self.premise_words)
        hypothesis = find_word_spans(self.hypothesis, self.hypothesis_words)
        shift = len(self.premise) + 1
        second = [(hypothesis[i][0] + shift, hypothesis[i][1] + shift) for i in self.hypothesis_evidence]
        return (*(premise[i] for i in self.premise_evidence), *second)


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[EntailmentPair, ...]:
    """`count` pairs, a third of each label; pair i depends only on `seed` and i."""
    refuse_outside_range("count", count, 0)
    if part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, got {part!r}.", code="E_OPTION")
    return tuple(_make_pair(random.Random(f"entailment {seed} {i}"), part) for i in range(count))


def part_of(premise: str, hypothesis: str) -> Part:
    return "held-out" if zlib.crc32(f"{premise}\n{hypothesis}".encode()) % 5 == 0 else "training"


def list_vocabulary() -> tuple[str, ...]:
    """Every word that can occur in a pair."""
    return (".", "is", "in", "the", *OPENINGS, *ADVERBS, *ADJECTIVES, *PEOPLE, *PLACES)


def find_word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where each of the words is in the text, one after the other."""
    spans, start = [], 0
    for word in words:
        start = text.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


# --- drawing pairs ----------------------------------------------------------------------------------------------------


def _make_pair(rng: random.Random, part: Part) -> EntailmentPair:
    while True:
        pair = _draw_pair(rng)
        if part_of(pair.premise, pair.hypothesis) == part:
            return pair


def _draw_pair(rng: random.Random) -> EntailmentPair:
    people, places = list(PEOPLE), list(PLACES)
    facts = tuple(_draw_fact(rng, _take(rng, people), _take(rng, places)) for _ in range(_pick(rng, FACTS)))
    label, chosen = _pick(rng, LABELS), _pick(rng, facts)
    others = [fact.where for fact in facts if fact is not chosen]
    who = _pick(rng, people) if label == "neutral" else chosen.who
    where = _pick(rng, others) if label == "contradiction" else chosen.where
    words = (who, "is", "in", "the", where, ".")
    return EntailmentPair(facts, Fact(words, 0, 4))


def _draw_fact(rng: random.Random, person: str, place: str) -> Fact:
    """ "(today) anna is (alone) in the (old) kitchen." """
    before = [_pick(rng, OPENINGS)] if rng.random() < 0.3 else []
    how = [_pick(rng, ADVERBS)] if rng.random() < 0.3 else []
    kind = [_pick(rng, ADJECTIVES)] if rng.random() < 0.3 else []
    words = (*before, person, "is", *how, "in", "the", *kind, place, ".")
    return Fact(words, len(before), len(words) - 2)


def _take(rng: random.Random, left: list[str]) -> str:
    return left.pop(int(rng.random() * len(left)))


def _pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]  # random() gives the same numbers in every Python version
