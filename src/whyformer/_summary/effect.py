"""Effect: how much more one change of the input does than a change of the same size elsewhere, with a paired test."""

from dataclasses import dataclass, replace

import numpy as np

from whyformer._plain.statistics import adjust_p_values, bootstrap, paired_test

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
