"""Entailment with known evidence: a premise of several facts about one thing, and a hypothesis about one of them.

    premise     "the lamp is still old. today it looks wet. it is quite heavy."
    hypothesis  "the lamp is wet."     entailment:    the premise says so
                "the lamp is dry."     contradiction: it says the opposite
                "the lamp is clean."   neutral:       it says nothing about that

Properties come in pairs of opposites. A premise has at most one of each pair, and the hypothesis names one property. It
follows if the premise has this property, is contradicted if it has its opposite, and is open if it has neither. So one
word of each text decides: the property of the hypothesis, and the property of the premise that is the same or its
opposite. Without one (neutral) the premise has no evidence. Subject, verbs, adverbs and the other properties never
matter, and every property is as frequent with each label.

One pair in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from whyformer.demo.draws import Part, generate_part, part_of, pick, take
from whyformer_papers.worlds.agreement import split_pairs, write_sentence

LABELS = ("entailment", "neutral", "contradiction")
OPPOSITES = split_pairs("""
    big/small hot/cold old/new wet/dry heavy/light clean/dirty open/closed full/empty bright/dark soft/hard fast/slow
    loud/quiet
""")
OPPOSITE_OF = {**dict(OPPOSITES), **{other: one for one, other in OPPOSITES}}
THINGS = "lamp key chair vase clock basket ladder bottle drum kettle mirror pillow candle coat kite bench".split()
VERBS = "is looks seems feels".split()
ADVERBS = "still quite very rather really".split()
OPENINGS = "today now again indeed".split()
FACTS = (2, 3, 4)
VOCABULARY = (".", "the", "it", *VERBS, *ADVERBS, *OPENINGS, *THINGS, *OPPOSITE_OF)


@dataclass(frozen=True)
class Fact:
    """A sentence that gives one property, as words."""

    words: tuple[str, ...]
    place: int  # of the property in `words`

    @property
    def property(self) -> str:
        return self.words[self.place]


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
        """Which fact has the claimed property or its opposite; None if none has."""
        wanted = (self.claim.property, OPPOSITE_OF[self.claim.property])
        return next((i for i, fact in enumerate(self.facts) if fact.property in wanted), None)

    @property
    def label(self) -> str:
        """One of LABELS, decided from the facts."""
        if self.fact is None:
            return "neutral"
        return "entailment" if self.facts[self.fact].property == self.claim.property else "contradiction"

    @property
    def premise_evidence(self) -> tuple[int, ...]:
        """The deciding property; nothing if there is none."""
        return () if self.fact is None else (self.candidates[self.fact],)

    @property
    def hypothesis_evidence(self) -> tuple[int, ...]:
        """The claimed property."""
        return (self.claim.place,)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The properties of the premise: the words that could have been evidence."""
        ends = accumulate((len(fact.words) for fact in self.facts), initial=0)
        return tuple(start + fact.place for start, fact in zip(ends, self.facts, strict=False))

    @property
    def rationale(self) -> tuple[tuple[int, int], ...]:
        """The evidence as spans of characters of both texts joined by a line break, as data sets have them."""
        spans = find_word_spans("\n".join(self.texts), (*self.premise_words, *self.hypothesis_words))
        second = (len(self.premise_words) + i for i in self.hypothesis_evidence)
        return tuple(spans[i] for i in (*self.premise_evidence, *second))


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[EntailmentPair, ...]:
    """`count` pairs, about a third of each label; pair i depends only on `seed` and i."""
    return generate_part(f"entailment {seed}", count, part, partial(_draw_entailment, part=part))


def find_word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where each of the words is in the text, one after the other."""
    spans, start = [], 0
    for word in words:
        start = text.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


# --- drawing pairs ----------------------------------------------------------------------------------------------------


def _draw_entailment(rng: random.Random, part: Part) -> EntailmentPair | None:
    left, thing = list(OPPOSITES), pick(rng, THINGS)
    kinds = [take(rng, left) for _ in range(pick(rng, FACTS))]
    properties = [pick(rng, kind) for kind in kinds]
    subjects = [("the", thing), *[("it",)] * (len(properties) - 1)]
    facts = tuple(_draw_fact(rng, who, what) for who, what in zip(subjects, properties, strict=True))
    label, chosen = pick(rng, LABELS), pick(rng, properties)
    claimed = {
        "entailment": chosen, "contradiction": OPPOSITE_OF[chosen], "neutral": pick(rng, pick(rng, left))
    }[label]  # fmt: skip
    pair = EntailmentPair(facts, Fact(("the", thing, "is", claimed, "."), 3))
    return pair if part_of("\n".join(pair.texts)) == part else None


def _draw_fact(rng: random.Random, subject: tuple[str, ...], what: str) -> Fact:
    """ "(today) it looks (quite) wet." """
    before = [pick(rng, OPENINGS)] if rng.random() < 0.3 else []
    how = [pick(rng, ADVERBS)] if rng.random() < 0.4 else []
    words = (*before, *subject, pick(rng, VERBS), *how, what, ".")
    return Fact(words, len(words) - 2)
