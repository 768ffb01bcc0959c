"""Entailment with known evidence: a premise of several facts, and a hypothesis about one of them.

    premise     "anna took the red lamp. today tom found the green key. rosa sold the blue chair near the door."
    hypothesis  "the key is green."   entailment:    the premise says so
                "the key is blue."    contradiction: it says that the key has another colour
                "the vase is blue."   neutral:       it says nothing about a vase

Everything has one colour. The colour of the hypothesis is always in the premise, in contradictions and neutral pairs as
the colour of something else, so that no count of shared words decides; the model has to find the thing and compare its
colour. So the evidence is known in both texts: the thing and the colour of the hypothesis, and the colour and the thing
of the one fact that is about it. Without such a fact (neutral) the premise has no evidence, and in the hypothesis only
the thing counts. Who did what, when and where never matters.

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
THINGS = "lamp key chair vase clock basket ladder bottle drum kettle mirror pillow candle coat kite bench".split()
COLOURS = "red green blue yellow black white brown purple".split()
PEOPLE = "anna ben carla david emma felix greta henry ida jonas karl lena mila nora oscar paul rosa tom".split()
DEEDS = "took found sold painted lost bought saw moved".split()
OPENINGS = "today yesterday again perhaps later".split()
PLACES = "door window wall garden stairs table".split()
FACTS = (2, 3, 4)
T = TypeVar("T")


@dataclass(frozen=True)
class Fact:
    """A sentence about one coloured thing, as words."""

    words: tuple[str, ...]
    thing: int  # indices into `words`
    colour: int

    @property
    def what(self) -> str:
        return self.words[self.thing]

    @property
    def shade(self) -> str:
        return self.words[self.colour]


@dataclass(frozen=True)
class EntailmentPair:
    """A premise and a hypothesis with known evidence. Positions are indices into the words of each text."""

    facts: tuple[Fact, ...]
    claim: Fact

    @property
    def premise_words(self) -> tuple[str, ...]:
        return tuple(word for fact in self.facts for word in fact.words)

    @property
    def hypothesis_words(self) -> tuple[str, ...]:
        return self.claim.words

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
        """Which fact is about the thing of the hypothesis; None if none is."""
        things = [fact.what for fact in self.facts]
        return things.index(self.claim.what) if self.claim.what in things else None

    @property
    def label(self) -> str:
        """One of LABELS, decided from the facts."""
        if self.fact is None:
            return "neutral"
        return "entailment" if self.facts[self.fact].shade == self.claim.shade else "contradiction"

    @property
    def premise_evidence(self) -> tuple[int, ...]:
        """The colour and the thing of the deciding fact; nothing if there is none."""
        if self.fact is None:
            return ()
        start = sum(len(fact.words) for fact in self.facts[: self.fact])
        return start + self.facts[self.fact].colour, start + self.facts[self.fact].thing

    @property
    def hypothesis_evidence(self) -> tuple[int, ...]:
        """The thing and the colour that are compared; without a fact about the thing, only the thing."""
        return (self.claim.thing,) if self.fact is None else (self.claim.thing, self.claim.colour)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The colours and things of the premise: the words that could have been evidence."""
        places: list[int] = []
        start = 0
        for fact in self.facts:
            places += [start + fact.colour, start + fact.thing]
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
    """`count` pairs, about a third of each label; pair i depends only on `seed` and i."""
    refuse_outside_range("count", count, 0)
    if part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, got {part!r}.", code="E_OPTION")
    return tuple(_make_pair(random.Random(f"entailment {seed} {i}"), part) for i in range(count))


def part_of(premise: str, hypothesis: str) -> Part:
    return "held-out" if zlib.crc32(f"{premise}\n{hypothesis}".encode()) % 5 == 0 else "training"


def list_vocabulary() -> tuple[str, ...]:
    """Every word that can occur in a pair."""
    return (".", "the", "is", "near", *OPENINGS, *PEOPLE, *DEEDS, *COLOURS, *THINGS, *PLACES)


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
    things, colours, people = list(THINGS), list(COLOURS), list(PEOPLE)
    facts = tuple(
        _draw_fact(rng, _take(rng, people), _take(rng, colours), _take(rng, things)) for _ in range(_pick(rng, FACTS))
    )
    label, chosen = _pick(rng, LABELS), _pick(rng, facts)
    others = [fact.shade for fact in facts if fact is not chosen]
    thing = _pick(rng, things) if label == "neutral" else chosen.what
    colour = _pick(rng, others) if label == "contradiction" else chosen.shade
    return EntailmentPair(facts, Fact(("the", thing, "is", colour, "."), 1, 3))


def _draw_fact(rng: random.Random, person: str, colour: str, thing: str) -> Fact:
    """ "(today) anna took the red lamp (near the door)." """
    before = [_pick(rng, OPENINGS)] if rng.random() < 0.3 else []
    after = ["near", "the", _pick(rng, PLACES)] if rng.random() < 0.3 else []
    words = (*before, person, _pick(rng, DEEDS), "the", colour, thing, *after, ".")
    return Fact(words, len(before) + 4, len(before) + 3)


def _take(rng: random.Random, left: list[str]) -> str:
    return left.pop(int(rng.random() * len(left)))


def _pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[int(rng.random() * len(options))]  # random() gives the same numbers in every Python version
