"""A finding: evidence that many items of one class share, what happens without and with it, and what makes the case.

Evidence is *used* if putting it into items of other classes raises the probability of the class by at least
SMALLEST_EFFECT more than matched control evidence of the same class does (p < LEVEL, Holm over all findings). Hiding
is measured too; for words and for copies of the same pixels it counts as well, while an object that is hidden says
nothing about a shortcut. What has no place, as the length of a text, is undone and applied instead (global_changes.py).
Evidence is *uniform* if it is nearly the same in all items, beyond what the model's other evidence reaches; of copies
less is asked for, the larger their effect is. It is *not part of the thing* unless masks show it on the object. All
three make it suspicious; `Finding.case` says what speaks for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from whyformer._plain.statistics import adjust_p_values, bootstrap, paired_test
from whyformer._runs.parts import BulkRow
from whyformer.show.wording import shorten_text

LEVEL = 0.05
MIN_CLASS = 8  # items, to be examined
SMALLEST_EFFECT = 0.1  # of a probability
SMALLEST_OFF_OBJECT = 0.5
FIXED_PLACE = 0.8  # of the texts
VALUE_LENGTH = 60  # characters of a value of the metadata
EvidenceKind: TypeAlias = Literal["patches", "copies", "overlay", "words", "whole"]
PatchBox: TypeAlias = tuple[int, int, int, int]  # top, left, bottom, right; the last two are outside


@dataclass(frozen=True, eq=False)
class Sighting:
    """The evidence in one item: the patches that show it, or where its words are in the text."""

    row: BulkRow
    patches: tuple[int, ...] = ()  # of the grown mark, numbered row by row on row.grid
    spans: tuple[tuple[int, int], ...] = ()  # characters of row.source
    likeness: float = 1.0  # to the centre of the cluster, at most 1

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
    without: AnswerChange | None = None  # in its own items, with the evidence hidden
    put_in: AnswerChange | None = None  # in items of other classes, with the evidence inserted
    placements: Mapping[str, AnswerChange] = field(default_factory=dict)  # the same, at other places and sizes
    off_object: float | None = None  # share of the mark's patches off the object; None without masks
    habits: tuple[str, ...] = ()  # of words: what else makes them uniform, one clause each
    links: tuple[Link, ...] = ()
    case: tuple[str, ...] = ()  # what speaks for a shortcut, one clause each
    is_suspicious: bool = False
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
    def score(self) -> float:
        """The order of suspicion: what inserting does beyond its control (of words and whole items: or hiding), times
        uniformity."""
        inserted = self.inserting.difference if self.inserting is not None else 0.0
        used = max(0.0, inserted) if self.kind == "patches" else self.effect
        return used * (self.uniformity.value if self.uniformity is not None else 0.0)

    @property
    def is_used_alone(self) -> bool | None:
        """Whether it changes the answer without the thing: of patches, where they are inserted; None if unknown."""
        if self.kind != "patches":
            return self.is_used if self.is_tested else None
        return self.inserting.is_certain() if self.inserting is not None else None

    @property
    def is_uniform(self) -> bool | None:
        """Whether it is nearly the same in all items; None if unknown."""
        return None if self.uniformity is None else self.uniformity.is_certain or bool(self.habits)

    @property
    def criteria(self) -> dict[str, bool | None]:
        """Which conditions of suspicion hold; None if unknown."""
        return {
            "used": self.is_used_alone,
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


def adjust_effects(effects: list[Effect | None]) -> list[Effect | None]:
    """The effects with Holm's correction for all of them together."""
    adjusted = adjust_p_values([float("nan") if effect is None else effect.p for effect in effects])
    return [effect and replace(effect, adjusted_p=p) for effect, p in zip(effects, adjusted, strict=True)]


def judge_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with p-values corrected over all of them and the verdict on each, the most suspicious first."""
    effects = adjust_effects([effect for one in findings for effect in (one.hiding, one.inserting)])
    judged = []
    for i, one in enumerate(findings):
        one = replace(one, hiding=effects[2 * i], inserting=effects[2 * i + 1])
        used, uniform, off_object = one.criteria.values()
        is_suspicious = used is True and uniform is True and off_object is not False
        judged.append(replace(one, is_suspicious=is_suspicious, case=tuple(list_case(one))))
    return sorted(judged, key=lambda one: (not one.is_suspicious, -one.score))  # stable: by class, then uniformity


def list_case(finding: Finding) -> Iterator[str]:
    """What speaks for a shortcut, one clause each."""
    used, uniform, off_object = finding.criteria.values()
    if used:
        yield f"it changes the answer by {finding.effect:.2f} beyond control evidence"
    if uniform and finding.uniformity is not None:
        value, limit = finding.uniformity.value, finding.uniformity.limit
        decides = f"it decides {value:.0%} of the class, natural evidence seldom {limit:.0%}"
        alike = f"it is nearly the same everywhere (uniformity {value:.2f}, natural evidence seldom {limit:.2f})"
        clauses = {"words": decides, "patches": alike, "copies": alike, "overlay": alike}
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
