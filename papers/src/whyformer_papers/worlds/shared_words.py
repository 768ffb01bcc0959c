"""Shared words: pairs of generated sentences that are alike because of exactly one word, which is known.

Every sentence is about two of 36 things. The two sentences of a pair have one thing in common; their other things,
and the words around them, are drawn independently. Where a thing stands in its sentence tells nothing about whether it
is the common one, so an explanation of the similarity has to look at both sentences.
"""

import random
from dataclasses import dataclass

from whyformer.demo.draws import refuse_outside_range
from whyformer_papers.worlds.agreement import ADJECTIVES, THINGS

NOUNS = tuple(singular for singular, _ in THINGS)
TEMPLATES = (
    "the {a} {x} was near the {b} {y}",
    "we saw a {a} {x} and a {b} {y} today",
    "behind the {x} there is a {a} {y}",
    "she wanted the {a} {x} , not the {y}",
    "my {x} is as {a} as your {y}",
)
VOCABULARY = tuple(
    dict.fromkeys([word for word in " ".join(TEMPLATES).split() if "{" not in word] + [*ADJECTIVES, *NOUNS])
)


@dataclass(frozen=True)
class SentencePair:
    """Two sentences and the only thing that both are about."""

    first: str
    second: str
    shared: str


def generate(count: int, seed: int) -> tuple[SentencePair, ...]:
    """`count` pairs; pair i depends only on `seed` and i."""
    refuse_outside_range("count", count, 0)
    refuse_outside_range("seed", seed, 0)
    return tuple(_draw_pair(random.Random(f"{seed} {i}")) for i in range(count))


def _draw_pair(rng: random.Random) -> SentencePair:
    shared, other, another = rng.sample(NOUNS, 3)
    return SentencePair(_write(rng, shared, other), _write(rng, shared, another), shared)


def _write(rng: random.Random, *nouns: str) -> str:
    x, y = rng.sample(nouns, 2)
    a, b = rng.sample(ADJECTIVES, 2)
    return rng.choice(TEMPLATES).format(x=x, y=y, a=a, b=b)
