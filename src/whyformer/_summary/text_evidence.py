r"""The evidence of texts: words, names, punctuation and phrases that many texts of a class are decided by.

A *unit* is a word or a run of punctuation. A text is decided by its five most relevant units. A unit that decides many
texts of a class is grown to a phrase: the next unit on either side belongs to it if it is the same in nearly all of
these texts; units at its ends that are as frequent in other classes are taken off again.

All texts of the class with the phrase show it, those first that rest on it most.

**Kin** are hidden together: phrases that mostly the same texts show (either may be enough for the model), and few
phrases of one class that together decide most of it, though none does alone, while the next ones decide far less (he,
his, him). They are one finding.

**Hiding** deletes the phrase from its texts, those first that rest on it most; the control deletes as many of the
least relevant other units of the same text. **Inserting** writes the phrase into texts of other classes, at the start,
in the middle and at the end; the control writes as many of the least relevant units of texts of the class without it. A
word with the meaning of the class has such an effect too, so effect alone accuses no word.

A word or phrase that the model loses nothing without is never suspicious.

It is *uniform* if it is at least twice as frequent in the class as in any other, and one of this holds: it is the same
phrase of two such units everywhere; nearly all its texts begin or end with it; it decides more than twice as many texts
as the most frequent of the other such units (a meaning is put in many words, a mark always in the same); or it *has no
position*: the words beside it are hardly more alike than those beside random positions of the same texts.

$$ \sum_w c_w (c_w - 1) / (n (n - 1)) $$

is the chance that two of n texts have the same word beside it (Simpson 1949), which does not depend on n. Words such as
*and* have no position either, but other classes have them too, and in few texts chance decides: this counts only for a
word that decides a quarter of the class and is five times as frequent there as in any other.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from whyformer._plain.statistics import bootstrap
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import (
    FIXED_PLACE,
    AnswerChange,
    Effect,
    Finding,
    Outlier,
    Presence,
    Sighting,
    Uniformity,
    measure_effect,
)
from whyformer._summary.inputs import InputReader, compare_right
from whyformer._summary.outliers import find_text_outliers
from whyformer._summary.shares import take_positive_shares

UNIT = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]+")
PUNCTUATION = re.compile(r"[^\w\s]")
TOP_UNITS = 5  # of a text
CANDIDATES = 6  # units tested in a class
MIN_TEXTS, MIN_TEXT_SHARE = 8, 0.04  # of the class, to be tested
SAME_NEIGHBOUR = 0.8  # of the texts, to grow
MAX_PHRASE = 8  # units
LEAST_COMMON = 0.45  # of the class: what is rarer is natural, unless its habits say more
LEAST_HABITUAL = 0.1  # of the class, for habits to count
LEAST_WITHOUT_POSITION = 0.25  # the same, for a word that has no position
ABOVE_NATURAL = 2.2  # times the share of the most frequent other evidence
EXCLUSIVE, STRANGE = 2.0, 5.0  # times as frequent as in any other class: belongs to it; is no word of all classes
MIN_CONTROLS = 4  # texts of the class without the phrase
MOST_KIN, LEAST_KIN = 4, 0.7  # phrases that are one finding, and the share of the class that they decide
KIN_GAP = 2.0  # times as many texts as the next phrase: what means the class is said in many words
TOGETHER = 0.6  # of the texts of two phrases have both: they are one mark
Phrase: TypeAlias = tuple[str, ...]
Words: TypeAlias = tuple[Phrase, ...]  # one phrase, or several that are hidden together
MISPLACED = 2.5  # times the agreement of neighbours at random positions: natural evidence has more


@dataclass(frozen=True, eq=False)
class TextUnits:
    """A text as units, with the relevance of each."""

    row: BulkRow
    names: tuple[str, ...]  # in lower case
    spans: tuple[tuple[int, int], ...]
    shares: np.ndarray

    @property
    def text(self) -> str:
        return self.row.source or ""

    @property
    def top(self) -> list[int]:
        """The units that the text is decided by, the most relevant first."""
        order = np.argsort(-np.round(self.shares, 12), kind="stable")
        return [int(i) for i in order[:TOP_UNITS] if self.shares[i] > 1 / max(len(self.shares), 1)]

    def shows(self, words: Words) -> bool:
        """Whether any of these phrases is in it."""
        return any(self.find(phrase) for phrase in words)

    def find(self, phrase: Sequence[str]) -> list[int]:
        """Where the phrase begins, each time."""
        size = len(phrase)
        return [i for i in range(len(self.names) - size + 1) if self.names[i : i + size] == tuple(phrase)]


def read_units(row: BulkRow) -> TextUnits | None:
    """The units of a text; None if it is not known where its tokens are, or no token has a positive score."""
    shares = take_positive_shares(row.scores) if row.scores is not None else None
    if shares is None or row.source is None or row.spans is None:
        return None
    found = list(UNIT.finditer(row.source))
    if not found:
        return None
    by_character = np.zeros(len(row.source) + 1)
    for share, span in zip(shares, row.spans, strict=False):
        if span is not None:
            by_character[span[0] : span[1]] += share / (span[1] - span[0])
    sums = np.array([by_character[one.start() : one.end()].sum() for one in found])
    return TextUnits(row, tuple(one[0].casefold() for one in found), tuple(one.span() for one in found), sums)


@dataclass(frozen=True, eq=False)
class TextEvidence:
    """The units of all sampled texts by class."""

    texts: Mapping[str, list[TextUnits]]
    reader: InputReader | None
    tested: int
    seed: int
    untested: str = ""

    def find(self) -> Iterator[Finding]:
        for name, texts in self.texts.items():
            counts = count_deciding(texts)
            least = max(MIN_TEXTS, MIN_TEXT_SHARE * len(texts))
            chosen = [unit for unit, count in rank_counts(counts)[:CANDIDATES] if count >= least]
            phrases = list(dict.fromkeys(self.trim(name, grow_phrase(unit, texts)) for unit in chosen))
            for words in self.join_kin(name, phrases):
                yield self.examine(name, words, texts)

    def join_kin(self, name: str, phrases: Sequence[Phrase]) -> list[Words]:
        """The phrases, those of one mark together."""
        texts = self.texts[name]
        shown = {one: np.array([text.shows((one,)) for text in texts]) for one in phrases}
        decided = {one: np.array([is_decided_by(text, (one,)) for text in texts]) for one in phrases}
        own = [one for one in phrases if self.is_exclusive(name, (one,)) and any(unit[0].isalnum() for unit in one)]
        for i, one in enumerate(own):
            same = [
                two for two in own[i:] if (shown[one] & shown[two]).sum() >= TOGETHER * (shown[one] | shown[two]).sum()
            ]
            if len(same) > 1:
                return [tuple(same), *((other,) for other in phrases if other not in same)]
        own.sort(key=lambda one: (-int(decided[one].sum()), one))
        natural = [(u, n) for u, n in rank_counts(count_deciding(texts))[:50] if self.is_exclusive(name, ((u,),))]
        for size in range(2, min(MOST_KIN, len(own)) + 1):
            kin = tuple(own[:size])
            covered = np.any([decided[one] for one in kin], axis=0).mean()
            units = {unit for one in kin for unit in one}
            next_one = max((n for unit, n in natural if unit not in units and unit[0].isalnum()), default=0)
            is_apart = decided[kin[-1]].sum() >= KIN_GAP * next_one and decided[kin[0]].mean() < LEAST_COMMON
            if covered >= LEAST_KIN and is_apart:
                return [kin, *((one,) for one in phrases if one not in kin)]
        return [(one,) for one in phrases]

    def examine(self, name: str, words: Words, texts: Sequence[TextUnits]) -> Finding:
        target = texts[0].row.target
        assert target is not None
        shown = [one for one in texts if one.shows(words)]
        shown.sort(key=lambda one: (-round(share_of(one, words), 9), one.row.id))
        deciding = [one for one in shown if is_decided_by(one, words)]
        uniformity = self.measure_commonness(name, words)
        sightings = [Sighting(one.row, spans=find_spans(one, words), likeness=share_of(one, words)) for one in shown]
        known = Finding(
            name, target, "words", name_phrase(words), len(texts), tuple(sightings), self.count_presence(name, words),
            uniformity=uniformity, habits=tuple(self.list_habits(name, words, deciding)),
        )  # fmt: skip
        if self.reader is None:
            return replace(known, untested=self.untested)
        plain = [one for one in texts if not one.shows(words)]
        others = [
            one for one in mix_texts(self.texts, name)
            if one.row.target != target and one.row.prediction != target and not one.shows(words)
        ]  # fmt: skip
        hiding, without = self.hide(deciding[: self.tested], words, target)
        inserting, put_in = self.insert(deciding[: self.tested], words, plain, others[: self.tested], target)
        return replace(known, hiding=hiding, without=without, inserting=inserting, put_in=put_in)

    def trim(self, name: str, phrase: tuple[str, ...]) -> tuple[str, ...]:
        """The phrase without units at its ends that other classes have as often; whole if they all do."""
        own = [i for i, unit in enumerate(phrase) if self.is_exclusive(name, ((unit,),))]
        return phrase[own[0] : own[-1] + 1] if own else phrase

    def count_presence(self, name: str, words: Words) -> tuple[Presence, ...]:
        found = [
            Presence(one, len(texts), sum(text.shows(words) for text in texts)) for one, texts in self.texts.items()
        ]
        return tuple(sorted(found, key=lambda one: (one.class_name != name, -one.share, one.class_name)))

    def is_exclusive(self, name: str, words: Words, times: float = EXCLUSIVE) -> bool:
        """Whether it is so many times as frequent in this class as in any other."""
        own, *others = self.count_presence(name, words)
        return own.share >= times * max((one.share for one in others), default=0.0)

    def list_natural(self, name: str, words: Words) -> list[tuple[str, float]]:
        """Units that decide texts of the class without the words and are most frequent there, and their share."""
        plain = [one for one in self.texts[name] if not one.shows(words)]
        if len(plain) < MIN_TEXTS:
            return []
        counts = rank_counts(count_deciding(plain))
        return [(unit, count / len(plain)) for unit, count in counts[:50] if self.is_exclusive(name, ((unit,),))]

    def measure_commonness(self, name: str, words: Words) -> Uniformity:
        """The share of the class that the words decide; the limit is set by what decides the other texts."""
        decided = np.array([is_decided_by(one, words) for one in self.texts[name]], dtype=np.float64)
        most = max((share for _, share in self.list_natural(name, words)), default=0.0)
        limit = max(LEAST_COMMON, ABOVE_NATURAL * most) if self.is_exclusive(name, words) else float("inf")
        return Uniformity(*bootstrap(decided, self.seed), limit)

    def list_habits(self, name: str, words: Words, deciding: Sequence[TextUnits]) -> Iterator[str]:
        """What else makes it uniform, one clause each."""
        if not self.is_exclusive(name, words) or len(deciding) < LEAST_HABITUAL * len(self.texts[name]):
            return
        if len(words) > 1:
            each = [sum(is_decided_by(one, (phrase,)) for one in deciding) / len(deciding) for phrase in words]
            if sum(each) >= 1.5:
                yield "they are in the same texts, and not beside each other"
            else:
                yield f"{len(words)} of them decide {len(deciding) / len(self.texts[name]):.0%} of the class"
            return
        (phrase,) = words
        if sum(self.is_exclusive(name, ((unit,),)) and unit[0].isalnum() for unit in phrase) > 1:
            yield "it is the same phrase each time"
        at_end = measure_fixed_place(deciding, phrase)
        if at_end >= FIXED_PLACE:
            yield f"{at_end:.0%} of its texts begin or end with it"
        if len(phrase) > 1 or len(deciding) < LEAST_WITHOUT_POSITION * len(self.texts[name]):
            return
        agreement, by_chance = measure_neighbours(deciding, phrase[0])
        if self.is_exclusive(name, words, STRANGE) and agreement < MISPLACED * by_chance:
            yield (
                f"it has no position in the sentence (two texts have the same word beside it {agreement:.1%} of the "
                f"time, beside random positions {by_chance:.1%})"
            )

    def hide(
        self, deciding: Sequence[TextUnits], words: Words, target: int
    ) -> tuple[Effect | None, AnswerChange | None]:
        """The fall of the probability without the words, beside that without as many other units of the text."""
        if not deciding or self.reader is None:
            return None, None
        before, _ = self.ask([one.text for one in deciding], target)
        after, predicted = self.ask([delete_spans(one.text, find_spans(one, words)) for one in deciding], target)
        told = AnswerChange(
            len(deciding),
            float(before.mean()),
            float(after.mean()),
            *compare_right([one.row for one in deciding], predicted, self.reader),
        )
        cuts = [delete_spans(one.text, [one.spans[i] for i in choose_others(one, words)]) for one in deciding]
        control, _ = self.ask(cuts, target)
        return measure_effect(before - after, before - control, self.seed), told

    def insert(
        self,
        deciding: Sequence[TextUnits],
        words: Words,
        plain: Sequence[TextUnits],
        others: Sequence[TextUnits],
        target: int,
    ) -> tuple[Effect | None, AnswerChange | None]:
        """The rise of the probability with the words at several places, beside that with as much other evidence."""
        if not deciding or not others:
            return None, None
        before, _ = self.ask([one.text for one in others], target)
        own = [write_phrase(deciding[i % len(deciding)], words) for i in range(len(others))]
        after = self.ask_at_places(others, own, target)
        told = AnswerChange(len(others), float(before.mean()), float(after.mean()))
        sources = plain if len(plain) >= MIN_CONTROLS else deciding
        drawn = [write_others(sources[i % len(sources)], words) for i in range(len(others))]
        return measure_effect(after - before, self.ask_at_places(others, drawn, target) - before, self.seed), told

    def ask_at_places(self, texts: Sequence[TextUnits], phrases: Sequence[str], target: int) -> np.ndarray:
        """[text]: the mean probability with the words at the start, in the middle and at the end."""
        variants = [text for one, words in zip(texts, phrases, strict=True) for text in write_at_places(one, words)]
        return self.ask(variants, target)[0].reshape(len(texts), -1).mean(1)

    def ask(self, texts: Sequence[str], target: int) -> tuple[np.ndarray, np.ndarray]:
        """[text]: the probability of a class, and the class that is predicted."""
        assert self.reader is not None
        return self.reader.ask(texts, target)

    def list_outliers(self) -> list[Outlier]:
        decided = {name: [sum_deciding(one) for one in texts] for name, texts in self.texts.items()}
        found = []
        for name, texts in self.texts.items():
            others = [one for other, some in decided.items() if other != name for one in some]
            found += find_text_outliers(decided[name], others, [one.row for one in texts])
        return found


# --- which units ------------------------------------------------------------------------------------------------------


def count_deciding(texts: Sequence[TextUnits]) -> Counter[str]:
    """How many texts each unit decides."""
    return Counter(name for one in texts for name in {one.names[i] for i in one.top})


def sum_deciding(one: TextUnits) -> dict[str, float]:
    """The share of relevance of each unit that decides the text."""
    sums: dict[str, float] = {}
    for i in one.top:
        sums[one.names[i]] = sums.get(one.names[i], 0.0) + float(one.shares[i])
    return sums


def rank_counts(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def grow_phrase(unit: str, texts: Sequence[TextUnits]) -> tuple[str, ...]:
    """The unit with its neighbours that are the same nearly wherever it decides."""
    places = [(one, i) for one in texts for i in one.top if one.names[i] == unit]
    before, after = 0, 0
    phrase: tuple[str, ...] = (unit,)
    while places and len(phrase) < MAX_PHRASE:
        left = Counter(one.names[i - before - 1] if i > before else "" for one, i in places)
        right = Counter(one.names[i + after + 1] if i + after + 1 < len(one.names) else "" for one, i in places)
        (prior, often), (next_one, as_often) = left.most_common(1)[0], right.most_common(1)[0]
        if prior and often >= SAME_NEIGHBOUR * len(places):
            phrase, before = (prior, *phrase), before + 1
        elif next_one and as_often >= SAME_NEIGHBOUR * len(places):
            phrase, after = (*phrase, next_one), after + 1
        else:
            break
    return phrase


def find_units(one: TextUnits, words: Words) -> list[int]:
    """The units of all occurrences."""
    return sorted({k for phrase in words for i in one.find(phrase) for k in range(i, i + len(phrase))})


def is_decided_by(one: TextUnits, words: Words) -> bool:
    return bool(set(one.top) & set(find_units(one, words)))


def share_of(one: TextUnits, words: Words) -> float:
    return float(one.shares[find_units(one, words)].sum())


def measure_fixed_place(texts: Sequence[TextUnits], phrase: Sequence[str]) -> float:
    """The share of the texts that begin with the phrase, or that end with it; the larger one."""
    size = len(phrase)
    starts = [one.names[:size] == tuple(phrase) for one in texts]
    ends = [one.names[-size:] == tuple(phrase) for one in texts]
    return max(sum(starts), sum(ends)) / max(len(texts), 1)


def measure_neighbours(texts: Sequence[TextUnits], unit: str) -> tuple[float, float]:
    """The chance that two texts have the same word before the unit, or after it, the larger one; and at random."""
    around = [(one.names[:i], one.names[i + 1 :]) for one in texts for i in one.find((unit,))[:1]]
    beside = [[("", *before)[-1:] for before, _ in around], [(*after, "")[:1] for _, after in around]]
    by_chance = measure_match_rate([("", *before, *after) for before, after in around])
    return max(map(measure_match_rate, beside)), by_chance


def measure_match_rate(choices: Sequence[Sequence[str]]) -> float:
    """The chance that a unit drawn from one list is the same as one drawn from another list."""
    total: defaultdict[str, float] = defaultdict(float)
    within = 0.0
    for some in choices:
        for unit, count in Counter(some).items():
            total[unit] += count / len(some)
            within += (count / len(some)) ** 2
    pairs = len(choices) * (len(choices) - 1)
    return (sum(share**2 for share in total.values()) - within) / pairs if pairs else 0.0


def name_phrase(words: Words) -> str:
    if len(words) > 1:
        named = [repr(" ".join(phrase)) for phrase in words]
        return f"{', '.join(named[:-1])} and {named[-1]} together"
    (phrase,) = words
    if len(phrase) > 1:
        return f"the phrase {' '.join(phrase)!r}"
    return f"the {'word' if phrase[0][0].isalnum() else 'punctuation'} {phrase[0]!r}"


def mix_texts(texts: Mapping[str, Sequence[TextUnits]], name: str) -> list[TextUnits]:
    """Texts of other classes, one of each in turn."""
    others = [some for other, some in texts.items() if other != name]
    longest = max(map(len, others), default=0)
    return [some[i] for i in range(longest) for some in others if i < len(some)]


# --- texts without and with them --------------------------------------------------------------------------------------


def find_spans(one: TextUnits, words: Words) -> tuple[tuple[int, int], ...]:
    """The characters of each occurrence."""
    return tuple((one.spans[i][0], one.spans[i + len(phrase) - 1][1]) for phrase in words for i in one.find(phrase))


def delete_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without these characters; punctuation that would be left twice, on both sides of a cut, stays once."""
    for start, end in sorted(spans, reverse=True):
        before, after = text[:start].rstrip(), text[end:].lstrip()
        is_twice = before[-1:] == after[:1] and bool(PUNCTUATION.fullmatch(after[:1]))
        text = text[:start] + (after[1:] if is_twice else text[end:])
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def write_phrase(one: TextUnits, words: Words) -> str:
    """The words as the text writes them, each once."""
    spans = [find_spans(one, (phrase,))[:1] for phrase in words]
    return " ".join(one.text[slice(*span)] for some in spans for span in some)


def choose_others(one: TextUnits, words: Words) -> list[int]:
    """As many of the least relevant units outside of the words, in their order."""
    own = find_units(one, words)
    count = sum(len(phrase) for phrase in words if one.find(phrase)) or len(words[0])
    order = [int(i) for i in np.argsort(np.round(one.shares, 12), kind="stable") if i not in own]
    return sorted(order[:count])


def write_others(one: TextUnits, words: Words) -> str:
    return " ".join(one.text[slice(*one.spans[i])] for i in choose_others(one, words))


def write_at_places(one: TextUnits, phrase: str) -> list[str]:
    middle = one.spans[len(one.spans) // 2][0]
    return [f"{phrase} {one.text}", f"{one.text[:middle]}{phrase} {one.text[middle:]}", f"{one.text} {phrase}"]


def collect_text_evidence(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader | None, tested: int, seed: int, untested: str
) -> TextEvidence:
    texts = {name: [one for row in rows if (one := read_units(row)) is not None] for name, rows in classes.items()}
    return TextEvidence({name: some for name, some in texts.items() if some}, reader, tested, seed, untested)
