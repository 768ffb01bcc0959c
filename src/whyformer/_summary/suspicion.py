"""Suspicion: is a cluster decided by something that has nothing to do with its class?

A Clever Hans predictor (Lapuschkin et al. 2019, arXiv:1902.10178) is right for the wrong reason, such as a watermark or
a source tag. What cannot be found this way is in wording.py. A cluster is called *suspicious* only if all of this
holds:

1. its items look at a common place, or at common words (`clusters`);
2. *one class*: items of other classes look there at most half as often (`exclusivity` is 1 - their rate / its rate);
3. *changes the answer*: hiding it lowers the probability of the class, or putting it into items of other classes raises
   it, by at least 0.1 more than the same change elsewhere, with p < 0.05 after Holm's correction over all clusters;
4. *the same thing*: the place shows the same pixels in all items (`sameness` at least 0.2), or the word is at the same
   place of the text (at least 0.8), p < 0.05 after Holm; the object itself, or a word with a meaning, would not;
5. where masks are given: at least half of the relevance there is off the object.

The order is that of the score: effect x exclusivity x sameness, times the share off the object where it is known. Each
factor is between 0 and 1. Without the model and the inputs, 3 to 5 are unknown and nothing is called suspicious.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from whyformer._plain.statistics import adjust_p_values, bootstrap, paired_test
from whyformer._runs.parts import BulkRow
from whyformer._summary.clusters import Cluster, SampledClass

LEVEL = 0.05


@dataclass(frozen=True)
class Effect:
    """Means over items of a change in the probability of the class, and of the same change elsewhere."""

    change: float
    elsewhere: float
    low: float  # the 95 % interval of the difference
    high: float
    p: float  # of the paired test
    items: int
    adjusted_p: float = float("nan")  # Holm, over all clusters

    @property
    def difference(self) -> float:
        return self.change - self.elsewhere

    def is_certain(self, smallest: float) -> bool:
        """Whether the difference is significant and at least this large."""
        return bool(self.adjusted_p < LEVEL and self.difference >= smallest)


def measure_effect(changes: np.ndarray, elsewhere: np.ndarray, seed: int) -> Effect:
    """The effect from the change of each item, and the change of the same item elsewhere."""
    _, low, high = bootstrap(changes - elsewhere, seed)
    p = paired_test(changes, elsewhere, seed)
    return Effect(float(np.mean(changes)), float(np.mean(elsewhere)), low, high, p, len(changes))


def adjust_effects(effects: list[Effect | None]) -> list[Effect | None]:
    """The effects with Holm's correction for all of them together."""
    adjusted = adjust_p_values([float("nan") if effect is None else effect.p for effect in effects])
    return [effect and replace(effect, adjusted_p=p) for effect, p in zip(effects, adjusted, strict=True)]


SMALLEST_EFFECT = 0.1
SMALLEST_EXCLUSIVITY = 0.5
SMALLEST_SAMENESS = 0.2  # of pixels
SMALLEST_FIXEDNESS = 0.8  # of the place of a word: sentences have habits, so words are never anywhere
SMALLEST_OFF_OBJECT = 0.5
CONDITIONS = (
    f"A cluster is suspicious if all of this holds: its items look at a common place or common words; items of other "
    f"classes look there at most half as often (one class at least {SMALLEST_EXCLUSIVITY:g}); hiding it, or putting it "
    f"into items of other classes, changes the probability by at least {SMALLEST_EFFECT:g} more than the same change "
    f"elsewhere (p < {LEVEL:g}, Holm); what is there is the same in all items (same at least {SMALLEST_SAMENESS:g}, "
    f"for the place of a word {SMALLEST_FIXEDNESS:g}; p < {LEVEL:g}, Holm); and, where masks "
    f"are given, at least {SMALLEST_OFF_OBJECT:.0%} of the relevance there is off the object. The score "
    "is the product of effect, one class, same and, if known, off object."
)


@dataclass(frozen=True)
class Sameness:
    """Whether a cluster's place shows the same thing in all its items."""

    value: float  # 0 to 1
    p: float
    in_class: bool = True  # compared with other items of the class; otherwise with other classes
    smallest: float = SMALLEST_SAMENESS  # that counts
    adjusted_p: float = float("nan")

    @property
    def is_certain(self) -> bool:
        return bool(self.adjusted_p < LEVEL and self.value >= self.smallest)


@dataclass(frozen=True)
class Recovery:
    """What the model does when everything that is the same around the region is hidden: means over the tested items."""

    items: int
    area: float  # the hidden share of the image
    right_before: float | None  # share of right predictions; None without labels
    right_after: float | None
    object_before: float | None  # share of relevance on the object; None without masks
    object_after: float | None


@dataclass(frozen=True, eq=False)
class Finding:
    """A cluster and what is known about it."""

    cluster: Cluster
    exclusivity: float | None = None  # None if the run explains one class only
    hiding: Effect | None = None
    inserting: Effect | None = None
    sameness: Sameness | None = None
    off_object: float | None = None
    recovery: Recovery | None = None
    untested: str = ""  # why there was no test

    @property
    def is_tested(self) -> bool:
        """Whether the model was run with what the cluster looks at hidden or inserted."""
        return self.hiding is not None or self.inserting is not None

    @property
    def effect(self) -> float:
        """The larger of the two effects, at least 0."""
        return max([0.0, *(effect.difference for effect in (self.hiding, self.inserting) if effect is not None)])

    @property
    def score(self) -> float:
        """The suspicion, 0 to 1; 0 where a factor is unknown."""
        known = (self.exclusivity or 0.0) * (self.sameness.value if self.sameness else 0.0)
        return self.effect * known * (1.0 if self.off_object is None else self.off_object)

    @property
    def criteria(self) -> dict[str, bool | None]:
        """Which conditions hold; None if unknown."""
        effects = [effect for effect in (self.hiding, self.inserting) if effect is not None]
        changes = any(effect.is_certain(SMALLEST_EFFECT) for effect in effects) if effects else None
        return {
            "looks at a common place": self.cluster.has_common,
            "one class only": None if self.exclusivity is None else self.exclusivity >= SMALLEST_EXCLUSIVITY,
            "changes the answer": changes,
            "shows the same thing": None if self.sameness is None else self.sameness.is_certain,
            "off the object": None if self.off_object is None else self.off_object >= SMALLEST_OFF_OBJECT,
        }

    @property
    def is_suspicious(self) -> bool:
        *required, off_object = self.criteria.values()
        return all(holds is True for holds in required) and off_object is not False


def compute_error_rate(rows: Sequence[BulkRow]) -> float | None:
    """The share of wrong predictions among items with a label; None if there are none."""
    known = [row.is_right for row in rows if row.is_right is not None]
    return 1 - sum(known) / len(known) if known else None


def measure_exclusivity(cluster: Cluster, others: Sequence[SampledClass]) -> float | None:
    """1 - how often items of other classes look there, divided by how often items of the class do.

    An item looks there if the share of relevance is at least half of the cluster's median.
    """
    if not cluster.has_common or not others:
        return None
    enough = float(np.median(cluster.shares)) / 2
    if enough <= 0:
        return None
    looks = lambda sampled: sampled.share_on(cluster.region, cluster.words) >= enough  # noqa: E731
    rate = float(np.mean(looks(cluster.sampled)))
    other_rate = float(np.mean(np.concatenate([looks(sampled) for sampled in others])))
    return max(0.0, 1 - other_rate / rate)


def correct_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with p-values corrected over all clusters, the most suspicious first."""
    effects = adjust_effects([effect for one in findings for effect in (one.hiding, one.inserting)])
    adjusted = adjust_p_values([float("nan") if one.sameness is None else one.sameness.p for one in findings])
    corrected = []
    for i, one in enumerate(findings):
        sameness = one.sameness and replace(one.sameness, adjusted_p=adjusted[i])
        corrected.append(replace(one, hiding=effects[2 * i], inserting=effects[2 * i + 1], sameness=sameness))
    return sorted(corrected, key=lambda one: (not one.is_suspicious, -one.score))  # stable: classes by name, by size
