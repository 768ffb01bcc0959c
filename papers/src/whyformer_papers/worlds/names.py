"""A world of names: sentences in which the kind of a name is decided by exactly one known word elsewhere.

In "last year kosso was for a while a quiet nurse." *kosso* is a person because of one word, *nurse*, the trigger. The
names are made up and drawn independently of the kinds, so a name shows only that it is a name. The trigger comes before
or after the name, at a distance that varies; all other words are neutral.

One sentence in three has a second clause, after a semicolon, with a name and a trigger of its own. Its kind is drawn
independently: the other trigger says nothing about the explained name. Whose trigger it is follows from the clause and
from the order (first name, first trigger), so no other single word is needed to know it.

For a model that tags every word (O, PER, LOC, ORG), the evidence for the tag of a name is known and unique.
One sentence in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from whyformer.demo.draws import Part, draw_index, generate_part, part_of, pick, take
from whyformer_papers.worlds.agreement import write_sentence

LABELS = ("O", "PER", "LOC", "ORG")
NAMES = """
    arvel beldo cossa darin elvo fermi garo hestal imbro jorun kosso lentis mavor nerida oskan pell quenna rusko silva
    tarin ulmo vesper wendal xanto yorvik zemba
""".split()
TRIGGERS = {
    "PER": "nurse singer baker sailor teacher doctor farmer painter poet tailor".split(),
    "LOC": "harbour valley river village mountain lake town desert forest canyon".split(),
    "ORG": "bank union company newspaper brewery publisher choir museum charity council".split(),
}
FILLERS = (
    "yesterday|often|perhaps|again|of course|in spring|last year|as always|in summer|at first|by chance|for a while|"
    "in the end|near the window|with a lamp|without any doubt|under the roof|behind a curtain|before the storm|"
    "like a song|on the table|after the letter"
).split("|")  # nouns among them, after the same articles as the triggers
ADJECTIVES = "famous quiet big small strange lovely forgotten busy".split()
TWO_CLAUSES = 1 / 3
VOCABULARY = tuple(
    dict.fromkeys(
        [";", ".", "was", "called", "a", *" ".join(FILLERS).split(), *ADJECTIVES, *NAMES]
        + [word for words in TRIGGERS.values() for word in words]
    )
)  # every word that can occur in a sentence


@dataclass(frozen=True)
class NamedSentence:
    """A sentence with known evidence. Positions are indices into `words`, which include punctuation."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # one per word, of LABELS
    name: int  # the explained name
    evidence: int  # its trigger: the only word that decides its kind
    decoy: int | None  # the trigger of the other name, if there is one

    @property
    def text(self) -> str:
        """Word i is token i + 1, after [CLS]."""
        return write_named(self.words)

    @property
    def label(self) -> str:
        return self.tags[self.name]


def write_named(words: Sequence[str]) -> str:
    """The words of a sentence of this world as text."""
    return write_sentence(words).replace(" ;", ";")


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[NamedSentence, ...]:
    """`count` sentences; sentence i depends only on `seed` and i."""
    return generate_part(f"names {seed}", count, part, partial(_draw_named_sentence, part=part))


def _draw_named_sentence(rng: random.Random, part: Part) -> NamedSentence | None:
    clauses = 2 if rng.random() < TWO_CLAUSES else 1
    left = list(NAMES)
    words: list[str] = []
    tags: list[str] = []
    positions: list[tuple[int, int]] = []  # of name and trigger
    for i in range(clauses):
        words += [";"] if i else []
        kind = pick(rng, LABELS[1:])
        name, trigger = take(rng, left), pick(rng, TRIGGERS[kind])
        clause = _draw_clause(rng, name, trigger, fillers=3 if clauses == 1 else 1)
        positions.append((len(words) + clause.index(name), len(words) + clause.index(trigger)))
        words += clause
        tags += ["O"] * (len(words) - len(tags))
        tags[positions[-1][0]] = kind
    explained = draw_index(rng, clauses)
    decoy = positions[1 - explained][1] if clauses == 2 else None
    sentence = NamedSentence((*words, "."), (*tags, "O"), *positions[explained], decoy)
    return sentence if part_of(" ".join(sentence.words)) == part else None


def _draw_clause(rng: random.Random, name: str, trigger: str, *, fillers: int) -> list[str]:
    """Up to `fillers` filler phrases before and after, one fewer (but at least one) at both positions between."""
    between = max(1, fillers - 1)
    noun = ["a", *([pick(rng, ADJECTIVES)] if rng.random() < 0.5 else []), trigger]
    first, second = ([name], noun) if rng.random() < 0.5 else (noun, ["called", name])
    left = list(FILLERS)
    before, middle, rest, after = (_take_fillers(rng, left, most) for most in (fillers, between, between, fillers))
    return [*before, *first, *middle, "was", *rest, *second, *after]


def _take_fillers(rng: random.Random, left: list[str], most: int) -> list[str]:
    """The words of 0 to `most` phrases, each taken out of those left."""
    return [word for _ in range(draw_index(rng, most + 1)) for word in take(rng, left).split()]
