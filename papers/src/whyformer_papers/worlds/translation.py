"""Translation with known alignment: every word of a made language comes from one word of an English sentence.

    source        the old red cat often sees a dog
    translation   lo  miru sabe ronu un tavi pelka zovi
    alignment     0   3    2    1    6  7    4     5

Words are translated one by one, each always by the same word, and put in another order: adjectives stand behind their
noun, the nearest first, and adverb and verb at the end of their clause. Clauses keep their order. Words are drawn
independently of each other: what has been written so far tells which kind of word follows, but not which word. That
is decided by one word of the source. (Two adjectives of one noun differ; a word that the sentence has twice is drawn
twice.)

One sentence in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
from dataclasses import dataclass
from functools import partial

from whyformer.demo.draws import Part, draw_some, generate_part, part_of, pick
from whyformer_papers.worlds.agreement import split_pairs

ARTICLES = split_pairs("the/lo a/un this/esi that/ola")
NOUNS = split_pairs("""
    cat/miru dog/tavi bird/fesko horse/dulmo child/nepi king/raban sailor/okti farmer/gusel baker/lirra doctor/hemo
    house/vodan boat/sirpa tree/kalu stone/bint river/aldu lamp/jorri
""")
ADJECTIVES = split_pairs("""
    red/sabe old/ronu small/tiko quiet/welma young/fara green/ussi tall/godar tired/plenu happy/iskal strange/yopa
    round/cumbi white/nalt
""")
VERBS = split_pairs("""
    sees/zovi likes/hadre follows/munke finds/brila wants/quelo paints/eskar fears/tondu helps/vimi draws/ralsa
    knows/ogepe
""")
ADVERBS = split_pairs("often/pelka now/dis slowly/urmo always/fenta")
JOINS = split_pairs("and/ke but/mar")
TRANSLATIONS = dict((*ARTICLES, *NOUNS, *ADJECTIVES, *VERBS, *ADVERBS, *JOINS))
VOCABULARY = (*TRANSLATIONS, *TRANSLATIONS.values())
MOST_ADJECTIVES = 2
MOST_CLAUSES = 2


@dataclass(frozen=True)
class Translation:
    """A sentence and its translation; word i of the translation comes from word alignment[i] of the source."""

    source_words: tuple[str, ...]
    alignment: tuple[int, ...]

    @property
    def source(self) -> str:
        return " ".join(self.source_words)

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(TRANSLATIONS[self.source_words[i]] for i in self.alignment)

    @property
    def text(self) -> str:
        """The translation."""
        return " ".join(self.words)

    @property
    def candidates(self) -> tuple[tuple[int, ...], ...]:
        """For each word of the translation, the words of the source that would give it: usually one."""
        return tuple(
            tuple(i for i, word in enumerate(self.source_words) if word == self.source_words[place])
            for place in self.alignment
        )


def generate(count: int, seed: int, *, part: Part = "held-out") -> tuple[Translation, ...]:
    """`count` sentences; sentence i depends only on `seed`, `part` and i."""
    return generate_part(f"translation {seed}", count, part, partial(_draw_sentence, part=part))


def _draw_sentence(rng: random.Random, part: Part) -> Translation | None:
    words: list[str] = []
    alignment: list[int] = []
    for clause in range(1 + int(rng.random() * MOST_CLAUSES)):
        if clause:
            alignment.append(len(words))
            words.append(pick(rng, JOINS)[0])
        _add_clause(rng, words, alignment)
    sentence = Translation(tuple(words), tuple(alignment))
    return sentence if part_of(sentence.source) == part else None


def _add_clause(rng: random.Random, words: list[str], alignment: list[int]) -> None:
    """Subject, adverb or none, verb, object; in the translation subject, object, adverb, verb."""
    _add_noun(rng, words, alignment)
    before = len(words)
    if rng.random() < 0.5:
        words.append(pick(rng, ADVERBS)[0])
    words.append(pick(rng, VERBS)[0])
    predicate = range(before, len(words))
    _add_noun(rng, words, alignment)
    alignment += predicate


def _add_noun(rng: random.Random, words: list[str], alignment: list[int]) -> None:
    """Article, adjectives, noun; in the translation article, noun, adjectives from the nearest on."""
    first = len(words)
    described = draw_some(rng, ADJECTIVES, int(rng.random() * (MOST_ADJECTIVES + 1)))
    words += [pick(rng, ARTICLES)[0], *(word for word, _ in described), pick(rng, NOUNS)[0]]
    alignment += [first, *range(len(words) - 1, first, -1)]
