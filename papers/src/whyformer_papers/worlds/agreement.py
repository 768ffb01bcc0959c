"""Subject-verb agreement: sentences in which a single, known word decides the answer.

In "the old key to the cabinets near the doors ___ rusty." the missing verb is singular because of one word, *key*.
The other nouns can mislead; those of the other number are called attractors. Nothing else in a sentence shows number:
the determiner is always "the", verbs in relative clauses are in the past tense, and the words after the gap fit both
forms.

One sentence in five, selected by a checksum of the words before the verb, is held out of all training. By default
`generate` returns only those, so the bundled models have never seen them. Sentences without a noun besides the subject
belong to both parts: there are too few beginnings such as "the key" to hold any out.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from whyformer.demo.draws import Part, draw_index, generate_part, part_of, pick, refuse_outside_range

LABELS = ("singular", "plural")
GAP = "___"


def split_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of (singular, plural) from "key/keys door/doors"."""
    return tuple((singular, plural) for singular, plural in (pair.split("/") for pair in text.split()))


THINGS = split_pairs("""
    key/keys door/doors cabinet/cabinets lamp/lamps chair/chairs table/tables window/windows picture/pictures
    letter/letters book/books bottle/bottles ladder/ladders bicycle/bicycles boat/boats bridge/bridges
    tower/towers garden/gardens tree/trees flower/flowers stone/stones wall/walls roof/roofs basket/baskets
    box/boxes watch/watches bench/benches shelf/shelves knife/knives leaf/leaves mouse/mice goose/geese
    horse/horses dog/dogs cat/cats bird/birds wagon/wagons
""")
PEOPLE = split_pairs("""
    teacher/teachers doctor/doctors farmer/farmers painter/painters sailor/sailors student/students
    singer/singers driver/drivers child/children woman/women man/men baker/bakers guard/guards
    neighbour/neighbours tailor/tailors king/kings
""")
NOUNS = THINGS + PEOPLE
ADJECTIVES = """
    old new small big red green blue heavy famous strange quiet clever lonely pretty dusty golden wooden tired
    happy young
""".split()
PREPOSITIONS = "to of near behind beside under above with by from opposite around".split()
# In the past tense, which shows no number.
TRANSITIVE_VERBS = "saw liked found painted wanted forgot admired remembered followed chose".split()
OPENINGS = ("today", "sometimes", "in summer", "of course", "as always")
ADVERBS = "still often always never clearly".split()
VERBS = {
    ("is", "are"): "beautiful expensive here gone ready missing important unusual safe late".split(),
    ("was", "were"): "beautiful lost there gone hidden missing important unusual safe late".split(),
    ("has", "have"): "vanished arrived changed moved fallen returned appeared survived".split(),
}
VOCABULARY = tuple(
    dict.fromkeys(
        [GAP, ",", ".", "the", "that"]
        + [form for noun in NOUNS for form in noun]
        + [*ADJECTIVES, *PREPOSITIONS, *TRANSITIVE_VERBS, *" ".join(OPENINGS).split(), *ADVERBS]
        + [form for forms in VERBS for form in forms]
        + [end for ends in VERBS.values() for end in ends]
    )
)  # every word that can occur in a sentence, and the gap


@dataclass(frozen=True)
class Sentence:
    """A sentence with known evidence. Positions are indices into `words`, which include punctuation."""

    words: tuple[str, ...]  # including the verb
    subject: int  # the evidence: the only word that decides the number of the verb
    attractors: tuple[int, ...]  # the nouns of the other number
    verb: int
    wrong_verb: str  # the same verb in the other number

    @property
    def label(self) -> int:
        """0 for singular, 1 for plural: an index into LABELS."""
        return int((self.words[self.verb], self.wrong_verb) not in VERBS)

    @property
    def evidence(self) -> str:
        return self.words[self.subject]

    @property
    def right_verb(self) -> str:
        return self.words[self.verb]

    @property
    def text(self) -> str:
        """The whole sentence."""
        return write_sentence(self.words)

    @property
    def masked(self) -> str:
        """The sentence with a gap for the verb, the input of the classifier. Word i is token i + 1, after [CLS]."""
        return write_sentence((*self.words[: self.verb], GAP, *self.words[self.verb + 1 :]))

    @property
    def prefix(self) -> str:
        """The words before the verb, the input of the language model. Word i is token i."""
        return write_sentence(self.words[: self.verb])


def generate(count: int, seed: int, *, attractors: int | None = None, part: Part = "held-out") -> tuple[Sentence, ...]:
    """`count` sentences, half of them plural; sentence i depends only on `seed` and i.

    With `attractors`, exactly that many nouns (0 to 3) are between subject and verb, all of the other number. Otherwise
    there are up to three nouns of either number, and sometimes one before the subject.
    """
    if attractors is not None:
        refuse_outside_range("attractors", attractors, 0, 3)
    return generate_part(f"agreement {seed}", count, part, partial(_draw_sentence, attractors=attractors, part=part))


def write_sentence(words: Sequence[str]) -> str:
    return " ".join(words).replace(" ,", ",").replace(" .", ".")


# --- drawing sentences -----------------------------------------------------------------------------------------------


def _draw_sentence(rng: random.Random, attractors: int | None, part: Part) -> Sentence | None:
    number = draw_index(rng, 2)
    numbers = (
        [draw_index(rng, 2) for _ in range(draw_index(rng, 4))] if attractors is None else [1 - number] * attractors
    )
    words, nouns = _draw_opening(rng, attractors is None)
    subject = len(words) + _append_noun_phrase(rng, words, number, NOUNS)
    nouns += [(_append_modifier(rng, words, other), other) for other in numbers]
    verb = len(words)
    forms = pick(rng, tuple(VERBS))
    words.append(forms[number])
    if rng.random() < 0.3:
        words.append(pick(rng, ADVERBS))
    words += [pick(rng, VERBS[forms]), "."]
    other_number = tuple(position for position, other in nouns if other != number)
    sentence = Sentence(tuple(words), subject, other_number, verb, forms[1 - number])
    has_other_noun = words[:verb].count("the") > 1
    return sentence if part_of(sentence.prefix) == part or not has_other_noun else None


def _draw_opening(rng: random.Random, may_have_noun: bool) -> tuple[list[str], list[tuple[int, int]]]:
    """No words, an adverb, or a phrase with a noun; and the (position, number) of that noun."""
    chance = rng.random()
    if chance < 0.6:
        return [], []
    if chance < 0.8 or not may_have_noun:
        return [*pick(rng, OPENINGS).split(), ","], []
    number = draw_index(rng, 2)
    words = [pick(rng, PREPOSITIONS)]
    position = 1 + _append_noun_phrase(rng, words, number, THINGS)
    return [*words, ","], [(position, number)]


def _append_modifier(rng: random.Random, words: list[str], number: int) -> int:
    """Append "near the doors" or "that the painters saw"; returns the position of its noun."""
    start = len(words)
    if rng.random() < 0.7:
        words.append(pick(rng, PREPOSITIONS))
        return start + 1 + _append_noun_phrase(rng, words, number, NOUNS)
    words.append("that")
    position = start + 1 + _append_noun_phrase(rng, words, number, PEOPLE)
    words.append(pick(rng, TRANSITIVE_VERBS))
    return position


def _append_noun_phrase(rng: random.Random, words: list[str], number: int, nouns: Sequence[tuple[str, str]]) -> int:
    """Append "the (adjective) noun"; returns the number of words before the noun."""
    adjective = [pick(rng, ADJECTIVES)] if rng.random() < 0.4 else []
    words += ["the", *adjective, pick(rng, nouns)[number]]
    return 1 + len(adjective)
