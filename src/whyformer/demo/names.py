"""A world of names: sentences in which the kind of a name is decided by one known word elsewhere.

In "yesterday kosso resembled beldo, since beldo is a quiet baker and kosso is a river." the first *kosso* is a place
because of one word, *river*. The names are made up, and every one of them can be a person, a place or a company, so the
name itself shows only that it is a name. The kind of the other name is the decoy. A third name may be described too.
The second *kosso* says whose kind *river* is: together with the deciding word it is the evidence.
For a model that tags every word (O, PER, LOC, ORG), the evidence for the tag of the first mention is known.

One sentence in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from whyformer.demo.agreement import PARTS, Part, write_sentence
from whyformer.demo.ranges import refuse_outside_range
from whyformer.errors import InputError

LABELS = ("O", "PER", "LOC", "ORG")
NAMES = """
    arvel beldo cossa darin elvo fermi garo hestal imbro jorun kosso lentis mavor nerida oskan pell quenna rusko silva
    tarin ulmo vesper wendal xanto yorvik zemba
""".split()
EVIDENCE = {
    "PER": "baker sailor teacher singer doctor farmer painter student poet tailor".split(),
    "LOC": "river village island mountain harbour valley lake town desert forest".split(),
    "ORG": "bank company newspaper factory airline brewery publisher bakery theatre museum".split(),
}
VERBS = "resembled mentioned outlived preceded surprised inspired followed replaced".split()
OPENINGS = ("yesterday", "in spring", "of course", "as always", "last year")
TIMES = ("again", "in the end", "for a while", "at first")
LINKS = (", since", ", although", "because", ";")
ADJECTIVES = "famous quiet big small strange lovely forgotten busy".split()


@dataclass(frozen=True)
class NamedSentence:
    """A sentence with known evidence. Positions are indices into `words`, which include punctuation."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # one per word, of LABELS
    name: int  # the explained mention
    evidence: int  # the only word that decides its kind
    mention: int  # the second mention of the name, which says whose kind that is
    decoys: tuple[int, ...]  # the words that decide the kinds of other names

    @property
    def label(self) -> str:
        return self.tags[self.name]

    @property
    def decoy_label(self) -> str:
        """The kind of the other name in the first clause; never that of the explained one."""
        return next(tag for i in self.decoys for tag, words in EVIDENCE.items() if self.words[i] in words)

    @property
    def text(self) -> str:
        """Word i is token i + 1, after [CLS]."""
        return write_sentence(self.words).replace(" ;", ";")


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[NamedSentence, ...]:
    """`count` sentences; sentence i depends only on `seed` and i."""
    refuse_outside_range("count", count, 0)
    if part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, got {part!r}.", code="E_OPTION")
    return tuple(_make_sentence(random.Random(f"names {seed} {i}"), part) for i in range(count))


def part_of(words: Sequence[str]) -> Part:
    return "held-out" if zlib.crc32(" ".join(words).encode()) % 5 == 0 else "training"


def list_vocabulary() -> tuple[str, ...]:
    """Every word that can occur in a sentence."""
    phrases = " ".join((*OPENINGS, *TIMES, *LINKS)).split()
    evidence = (word for words in EVIDENCE.values() for word in words)
    return tuple(dict.fromkeys((",", ";", ".", "is", "a", "and", *phrases, *NAMES, *VERBS, *ADJECTIVES, *evidence)))


def _make_sentence(rng: random.Random, part: Part) -> NamedSentence:
    while True:
        sentence = _draw_sentence(rng)
        if part_of(sentence.words) == part:
            return sentence


def _draw_sentence(rng: random.Random) -> NamedSentence:
    names = _draw_several(rng, NAMES, 3)
    kinds = _draw_several(rng, LABELS[1:], 2)
    kinds.append(_pick(rng, LABELS[1:]))
    words: list[str] = [*_pick(rng, OPENINGS).split(), ","] if rng.random() < 0.4 else []
    first = len(words)
    words += [names[0], _pick(rng, VERBS), names[1]]
    words += _pick(rng, TIMES).split() if rng.random() < 0.4 else []
    words += _pick(rng, LINKS).split()
    described = _draw_several(rng, (0, 1, 2), 3) if rng.random() < 0.5 else _draw_several(rng, (0, 1), 2)
    places, mentions = {}, {}
    for number, i in enumerate(described):
        words += ["and"] if number else []
        mentions[i] = len(words)
        words += [names[i], "is", "a", *([_pick(rng, ADJECTIVES)] if rng.random() < 0.4 else [])]
        places[i] = len(words)
        words.append(_pick(rng, EVIDENCE[kinds[i]]))
    words.append(".")
    explained = int(rng.random() * 2)
    tag_of = dict(zip(names, kinds, strict=True))
    tags = tuple(tag_of.get(word, "O") for word in words)
    decoys = (places[1 - explained], *(places[i] for i in places if i == 2))
    name = first if explained == 0 else first + 2
    return NamedSentence(tuple(words), tags, name, places[explained], mentions[explained], decoys)


def _draw_several(rng: random.Random, options: Sequence, count: int) -> list:  # type: ignore[type-arg]
    left = list(options)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]


def _pick(rng: random.Random, options: Sequence[str]) -> str:
    return options[int(rng.random() * len(options))]
