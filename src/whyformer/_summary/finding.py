"""A finding: evidence that many items of one class share, what happens without and with it, and what makes the case.

Evidence is *used* if hiding it where it is, or putting it into items of other classes, changes the probability of the
class by at least SMALLEST_EFFECT more than matched control evidence of the same class does (p < LEVEL, Holm over all
findings). What has no place, as the length of a text, is undone and applied instead (global_changes.py).

**Effect decides**, beside the user's own items. A patch of evidence in images is suspicious if, put into images of
other classes, it gives at least UNUSUAL more than the best evidence, as large, that items without it have for their
own classes: the face of a cat gives hardly more than what other cats and dogs have. A change of whole items is
suspicious from STRONG on: what undoing takes and applying gives, beyond their controls, together. A word that means the
class has as large an effect as a mark, so words need habits too (text_evidence.py). Uniformity, the place on or off the
object and who else shows it are what speaks for or against, and no condition; what is used and shown by this class
alone, but gives only PROBABLE more, is a *probable* shortcut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from whyformer._plain.statistics import adjust_p_values, bootstrap, paired_test
from whyformer._runs.parts import BulkRow
from whyformer.show.wording import shorten_text

LEVEL = 0.05
MIN_CLASS = 8  # items, to be examined
SMALLEST_EFFECT = 0.1  # of a probability
SMALLEST_LOSS = 0.02  # of a probability, without a word
UNUSUAL, PROBABLE = 0.4, 0.3  # of a probability: what inserting gives beyond the best evidence of other items
STRONG = 0.8  # of a probability: a change of whole items, undoing and applying together
TRIES = 10_000  # permutations
SAME_ITEMS = 0.7  # of a finding: it is the same mark
EXCLUSIVE = 2.0  # times as frequent as in any other class
SMALLEST_OFF_OBJECT = 0.5
FIXED_PLACE = 0.8  # of the texts
VALUE_LENGTH = 60  # characters of a value of the metadata
EvidenceKind: TypeAlias = Literal["patches", "words", "whole"]
PatchBox: TypeAlias = tuple[int, int, int, int]  # top, left, bottom, right; the last two are outside


@dataclass(frozen=True, eq=False)
class Sighting:
    """The evidence in one item: the patches that show it, or where its words are in the text."""

    row: BulkRow
    patches: tuple[int, ...] = ()  # of the grown mark, numbered row by row on row.grid
    spans: tuple[tuple[int, int], ...] = ()  # characters of row.source
    likeness: float = 1.0  # how well it matches, at most 1

    @property
    def box(self) -> PatchBox | None:
        """The smallest rectangle of patches around the mark; None for texts and changes of the whole input."""
        if not self.patches or self.row.columns is None:
            return None
        down, across = np.divmod(np.array(self.patches), self.row.columns)
        return int(down.min()), int(across.min()), int(down.max()) + 1, int(across.max()) + 1


@dataclass(frozen=True)
class Presence:
    """How many sampled items of a class show the evidence."""

    class_name: str
    items: int
    shown: int

    @property
    def share(self) -> float:
        return self.shown / self.items if self.items else 0.0


@dataclass(frozen=True)
class Uniformity:
    """How alike the evidence is in all its items: 0 as varied as all evidence of the class, 1 identical."""

    value: float
    low: float  # 95 % interval
    high: float
    limit: float  # that this model's other evidence sets

    @property
    def is_certain(self) -> bool:
        return self.value >= self.limit


@dataclass(frozen=True)
class Effect:
    """Means over items of a change in the probability of the class, and of the same change by control evidence."""

    change: float
    elsewhere: float
    low: float  # the 95 % interval of the difference
    high: float
    p: float  # of the paired test
    items: int
    adjusted_p: float = float("nan")  # Holm, over all findings

    @property
    def difference(self) -> float:
        return self.change - self.elsewhere

    def is_certain(self, smallest: float = SMALLEST_EFFECT) -> bool:
        """Whether the difference is significant and at least this large."""
        return bool(self.adjusted_p < LEVEL and self.difference >= smallest)


@dataclass(frozen=True)
class AnswerChange:
    """The model's answer before and after a change: means over items."""

    items: int
    before: float  # probability of the finding's class
    after: float
    right_before: float | None = None  # share of right predictions; None without labels
    right_after: float | None = None
    area: float | None = None  # the changed share of the image


@dataclass(frozen=True)
class Link:
    """A folder or a value of a metadata column in which the evidence is concentrated, among items of its class."""

    column: str
    value: str
    inside: float  # share of the items there that show it
    outside: float
    p: float  # of Fisher's exact test; of a finding: Holm, over all findings and values


@dataclass(frozen=True, eq=False)
class Finding:
    """Evidence of one class and all that is known about it."""

    class_name: str
    target: int  # the index of the class
    kind: EvidenceKind
    what: str  # "a mark in the lower left", "the word 'reuters'", "its sharpness"
    class_items: int  # sampled items of the class
    sightings: tuple[Sighting, ...] = ()  # in items of the class, the most typical first
    presence: tuple[Presence, ...] = ()  # its own class first, then the others by share
    where: np.ndarray | None = None  # [row column]: the share of sightings that cover each patch
    uniformity: Uniformity | None = None
    hiding: Effect | None = None  # falls of the probability: positive if the evidence is used
    inserting: Effect | None = None  # rises
    unusual: Effect | None = None  # rises, beside those that the best evidence of items without it causes
    without: AnswerChange | None = None  # in its own items, with the evidence hidden
    put_in: AnswerChange | None = None  # in items of other classes, with the evidence inserted
    off_object: float | None = None  # share of the mark's patches off the object; None without masks
    part: str = ""  # of the object that it is on, as far as masks show it
    habits: tuple[str, ...] = ()  # of words: what else makes them uniform, one clause each
    links: tuple[Link, ...] = ()
    case: tuple[str, ...] = ()  # what speaks for a shortcut, one clause each
    is_suspicious: bool = False
    is_probable: bool = False  # a shortcut: used, and of one class alone, but weaker
    untested: str = ""  # why there was no test

    @property
    def is_tested(self) -> bool:
        return self.hiding is not None or self.inserting is not None

    @property
    def effect(self) -> float:
        """The larger of the two effects beyond the control, at least 0."""
        return max([0.0, *(one.difference for one in (self.hiding, self.inserting) if one is not None)])

    @property
    def is_used(self) -> bool:
        return any(one is not None and one.is_certain() for one in (self.hiding, self.inserting))

    @property
    def strength(self) -> float:
        """What hiding takes and inserting gives, each beyond its control, together."""
        found = [one for one in (self.hiding, self.inserting) if one is not None]
        return float(sum(one.difference for one in found)) if any(one.is_certain() for one in found) else 0.0

    def is_strong(self, unusual: float, strength: float) -> bool:
        """Whether it gives so much more than evidence usually does; a change of whole items, so much in all."""
        if self.kind == "whole":
            return self.strength >= strength
        return self.unusual is not None and self.unusual.is_certain(unusual)

    @property
    def score(self) -> float:
        """The order of suspicion: strength, a little more of it for what is uniform, and of this class alone."""
        alike = max(0.0, self.uniformity.value) if self.uniformity is not None else 0.0
        return max(0.0, self.strength) * (1 + min(alike, 1.0))

    @property
    def is_uniform(self) -> bool | None:
        """Whether it is nearly the same in all items, or has another habit of marks; None if unknown."""
        return None if self.uniformity is None else self.uniformity.is_certain or bool(self.habits)

    @property
    def is_exclusive(self) -> bool:
        """Whether its class shows it much more often than any other."""
        return bool(self.presence) and self.presence[0].share >= EXCLUSIVE * max(
            (one.share for one in self.presence[1:]), default=0.0
        )

    @property
    def criteria(self) -> dict[str, bool | None]:
        """What speaks for suspicion; None if unknown."""
        return {
            "used": self.is_used if self.is_tested else None,
            "unusual": self.is_strong(UNUSUAL, STRONG) if self.is_tested and self.kind != "words" else None,
            "uniform": self.is_uniform,
            "off the object": None if self.off_object is None else self.off_object >= SMALLEST_OFF_OBJECT,
        }

    @property
    def rows(self) -> list[BulkRow]:
        return [one.row for one in self.sightings]

    @property
    def examples(self) -> tuple[BulkRow, ...]:
        """Three items to open: the most typical ones."""
        return tuple(one.row for one in self.sightings[:3])


@dataclass(frozen=True, eq=False)
class Confusion:
    """Items with one label that the model takes for another class, and the evidence that they show for it."""

    label: str
    class_name: str  # predicted
    items: int  # in the sample
    rows: tuple[BulkRow, ...]
    finding: Finding | None = None  # the evidence of the predicted class that most of them show
    shown: int = 0  # items that show it


@dataclass(frozen=True, eq=False)
class Outlier:
    """An item whose evidence is unlike that of all others of its class."""

    id: str
    class_name: str
    score: float  # typical deviations above the median distance
    row: BulkRow


def measure_effect(changes: np.ndarray, elsewhere: np.ndarray, seed: int) -> Effect:
    """The effect from the change of each item, and the change of the same item by control evidence."""
    _, low, high = bootstrap(changes - elsewhere, seed)
    p = paired_test(changes, elsewhere, seed)
    return Effect(float(np.mean(changes)), float(np.mean(elsewhere)), low, high, p, len(changes))


def compare_items(changes: np.ndarray, elsewhere: np.ndarray, seed: int) -> Effect | None:
    """The effect from the changes of some items and those of other items (a permutation test); None without any."""
    if not len(changes) or not len(elsewhere):
        return None
    generator, pool, count = np.random.default_rng(seed), np.concatenate([changes, elsewhere]), len(changes)
    drawn = generator.permuted(np.tile(pool, (TRIES, 1)), axis=1)
    by_chance = np.abs(drawn[:, :count].mean(1) - drawn[:, count:].mean(1))
    observed = float(changes.mean() - elsewhere.mean())
    p = ((by_chance >= abs(observed) - 1e-9).sum() + 1) / (TRIES + 1)
    means = [generator.choice(some, (TRIES, len(some))).mean(1) for some in (changes, elsewhere)]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return Effect(float(changes.mean()), float(elsewhere.mean()), float(low), float(high), float(p), count)


def adjust_effects(effects: list[Effect | None]) -> list[Effect | None]:
    """The effects with Holm's correction for all of them together."""
    adjusted = adjust_p_values([float("nan") if effect is None else effect.p for effect in effects])
    return [effect and replace(effect, adjusted_p=p) for effect, p in zip(effects, adjusted, strict=True)]


def judge_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with p-values corrected over all of them and the verdict on each, the most suspicious first."""
    tests = [effect for one in findings for effect in (one.hiding, one.inserting, one.unusual)]
    effects, judged = iter(adjust_effects(tests)), []
    for one in findings:
        one = replace(one, hiding=next(effects), inserting=next(effects), unusual=next(effects))
        is_suspicious = one.is_used and (
            is_word_suspicious(one) if one.kind == "words" else one.is_strong(UNUSUAL, STRONG)
        )
        is_probable = not is_suspicious and one.is_used and one.is_exclusive and one.is_strong(PROBABLE, STRONG)
        case = tuple(list_case(one))
        judged.append(replace(one, is_suspicious=is_suspicious, is_probable=is_probable, case=case))
    judged.sort(key=lambda one: (not one.is_suspicious, not one.is_probable, -one.score))
    return list(drop_repeated(judged))


def drop_repeated(judged: Sequence[Finding]) -> Iterator[Finding]:
    """One mark is one finding: without suspected ones of which most items show a more suspicious one of the class."""
    kept: list[tuple[str, set[str]]] = []
    for one in judged:
        ids = {row.id for row in one.rows}
        if one.is_suspicious or one.is_probable:
            if any(name == one.class_name and len(ids & known) >= SAME_ITEMS * len(ids) > 0 for name, known in kept):
                continue
            kept.append((one.class_name, ids))
        yield one


def is_word_suspicious(one: Finding) -> bool:
    """A word that the model loses nothing without is no shortcut."""
    return one.is_uniform is True and (one.hiding is None or one.hiding.is_certain(SMALLEST_LOSS))


def list_case(finding: Finding) -> Iterator[str]:
    """What speaks for a shortcut, one clause each."""
    used, unusual, uniform, off_object = finding.criteria.values()
    if used:
        yield f"it changes the answer by {finding.effect:.2f} beyond control evidence"
    if unusual and finding.unusual is not None:
        yield (
            f"put into other classes it gives {finding.unusual.change:.2f}, where the best evidence of items without "
            f"it gives {finding.unusual.elsewhere:.2f}"
        )
    if uniform and finding.uniformity is not None:
        value, limit = finding.uniformity.value, finding.uniformity.limit
        decides = f"it decides {value:.0%} of the class, natural evidence seldom {limit:.0%}"
        alike = f"it is nearly the same everywhere (uniformity {value:.2f}, natural evidence seldom {limit:.2f})"
        clauses = {"words": decides, "patches": alike}
        yield from [clauses[finding.kind]] if value >= limit and finding.kind in clauses else []
        yield from finding.habits
    if off_object and finding.off_object is not None:
        yield f"{finding.off_object:.0%} of it is off the object"
    own, *others = finding.presence or (Presence("", 0, 0),)
    most = max((one.share for one in others), default=1.0)
    if own.share >= 2 * most:
        yield f"{own.share:.0%} of {own.class_name} show it, and at most {most:.0%} of another class"
    yield from map(describe_link, finding.links)


def describe_link(link: Link) -> str:
    where = f"{link.column} {shorten_text(link.value, VALUE_LENGTH)!r}"
    return f"{link.inside:.0%} of its items with {where} show it, {link.outside:.0%} of the others"
