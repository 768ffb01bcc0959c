"""A world of names: sentences in which the kind of a name is decided by one known word elsewhere.

In "near the old river, kosso waited again; beldo vanished with the baker." *kosso* is a place because of one word,
*river*, and *beldo* a person because of *baker*: the noun in the same half of the sentence decides, before or after the
name. The names are made up, and every one of them can be a person, a place or a company, so the name itself shows only
that it is a name. The noun of the other half is a decoy, always of another kind. For a model that tags every word (O,
PER, LOC, ORG), the evidence for the tag of a name is known.

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
VERBS = "waited vanished appeared laughed slept changed returned remained".split()
PREPOSITIONS = "near with behind without beyond beside".split()
OPENINGS = ("yesterday", "in spring", "of course", "as always", "last year")
TIMES = ("again", "in the end", "for a while", "at first")
LINKS = (";", ", while", "and")
ADJECTIVES = "famous quiet big small strange lovely forgotten busy old".split()


@dataclass(frozen=True)
class NamedSentence:
    """A sentence with known evidence. Positions are indices into `words`, which include punctuation."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # one per word, of LABELS
    name: int  # the explained mention
    evidence: int  # the only word that decides its kind
    decoy: int  # the word that decides the kind of the other name

    @property
    def label(self) -> str:
        return self.tags[self.name]

    @property
    def decoy_label(self) -> str:
        """The kind of the other name, never that of the explained one."""
        return next(tag for tag, words in EVIDENCE.items() if self.words[self.decoy] in words)

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
    others = (*phrases, *PREPOSITIONS, *NAMES, *VERBS, *ADJECTIVES, *evidence)
    return tuple(dict.fromkeys((",", ".", "the", *others)))


def _make_sentence(rng: random.Random, part: Part) -> NamedSentence:
    while True:
        sentence = _draw_sentence(rng)
        if part_of(sentence.words) == part:
            return sentence


def _draw_sentence(rng: random.Random) -> NamedSentence:
    names, kinds = _draw_several(rng, NAMES, 2), _draw_several(rng, LABELS[1:], 2)
    words: list[str] = [*_pick(rng, OPENINGS).split(), ","] if rng.random() < 0.4 else []
    places = [_append_clause(rng, words, names[0], kinds[0])]
    words += _pick(rng, LINKS).split()
    places.append(_append_clause(rng, words, names[1], kinds[1]))
    words.append(".")
    tag_of = dict(zip(names, kinds, strict=True))
    explained = int(rng.random() * 2)
    (name, evidence), (_, decoy) = places[explained], places[1 - explained]
    return NamedSentence(tuple(words), tuple(tag_of.get(word, "O") for word in words), name, evidence, decoy)


def _append_clause(rng: random.Random, words: list[str], name: str, kind: str) -> tuple[int, int]:
    """Append "near the old river, kosso waited again" or the other way round; returns where name and evidence are."""
    adjective = [_pick(rng, ADJECTIVES)] if rng.random() < 0.4 else []
    place = [_pick(rng, PREPOSITIONS), "the", *adjective, _pick(rng, EVIDENCE[kind])]
    event = [name, _pick(rng, VERBS), *(_pick(rng, TIMES).split() if rng.random() < 0.4 else [])]
    start, is_first = len(words), rng.random() < 0.5
    words += [*place, ",", *event] if is_first else [*event, *place]
    return (
        start + (len(place) + 1 if is_first else 0),
        start + (len(place) if is_first else len(event) + len(place)) - 1,
    )


def _draw_several(rng: random.Random, options: Sequence, count: int) -> list:  # type: ignore[type-arg]
    left = list(options)
    return [left.pop(int(rng.random() * len(left))) for _ in range(count)]


def _pick(rng: random.Random, options: Sequence[str]) -> str:
    return options[int(rng.random() * len(options))]
