"""What a claim rests on in few runs: coded ablations choose the sources that direct checks are made of.

One set of coded ablations serves all claims of an answer, since every run has every token of it. A claim then has its
own direct checks: the three units with the largest weights alone, without them, and in pairs, as far as the reading
asks for them (dependence.py) and the limit of forwards allows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from whyformer._cite.dependence import (
    AROUND_HALF,
    HALF,
    LARGEST_SET,
    LEAST,
    NOTHING,
    Dependence,
    Effects,
    Sources,
    TooCostly,
    find_also,
    find_opposed,
    name_reading,
    read_dependence,
)
from whyformer._cite.design import MOST_UNITS, Vector, fit_weights, list_ablations

CANDIDATES = 3  # units that direct checks are made of
ALONE = 4  # units that are tried alone: whether each is enough
OPPOSED = 2  # units that are tried as speaking against a claim
LIKELY_OPPOSED = 0.3  # of the rise that is asked for: what their weights must be below 0
PAIRED = 5  # of many sources: those whose pairs a complete measurement tries

RunAblations = Callable[[Sequence[Sources]], Sequence[Vector]]  # log-odds [token] of the answer, for each kept set


class Ablations:
    """The log-odds of every token of an answer with some of its sources, asked for once each."""

    def __init__(self, run: RunAblations, sizes: Sequence[int], rest: int) -> None:
        """sizes: tokens of each source; rest: tokens that always stay."""
        self.run, self.sizes, self.rest = run, tuple(sizes), rest
        self.everything: Sources = frozenset(range(len(sizes)))
        self.known: dict[Sources, Vector] = {}
        self.forwards = 0.0  # each counted by the share of the tokens that it reads

    def count_forwards(self, kept: Sources) -> float:
        return (self.rest + sum(self.sizes[j] for j in kept)) / (self.rest + sum(self.sizes))

    def learn(self, kept: Sources, log_odds: Vector) -> None:
        """What another run has found."""
        self.known[kept] = log_odds
        self.forwards += self.count_forwards(kept)

    def ask(self, sets: Sequence[Sources]) -> None:
        new = [one for one in dict.fromkeys(sets) if one not in self.known]
        for kept, found in zip(new, self.run(new) if new else (), strict=True):
            self.learn(kept, found)

    def sum_values(self, tokens: Sequence[int], limit: float, *, of_log_p: bool = False) -> Callable[[Sources], float]:
        """The worth of a claim of these tokens; what is not known is asked for up to so many forwards in all."""

        def find_value(kept: Sources) -> float:
            if kept not in self.known:
                if self.forwards + self.count_forwards(kept) > limit:
                    raise TooCostly
                self.ask([kept])
            return sum_tokens(self.known[kept], tokens, of_log_p=of_log_p)

        return find_value


def sum_tokens(log_odds: Vector, tokens: Sequence[int], *, of_log_p: bool = False) -> float:
    chosen = log_odds[list(tokens)]
    return float((-np.logaddexp(0.0, -chosen) if of_log_p else chosen).sum())


@dataclass(frozen=True)
class Measured:
    """What was found out about one claim; sources by their numbers."""

    reading: Dependence
    around: tuple[Dependence | None, ...]  # at AROUND_HALF of the effect; None where the checks were too many
    by_log_p: Dependence | None
    also: tuple[int, ...]
    against: tuple[int, ...]
    effect: float
    weights: Vector  # [source]
    is_cut: bool = False  # the limit was reached before the reading was complete

    @property
    def is_borderline(self) -> bool:
        return any(one not in (None, self.reading) for one in self.around)


def measure_claim(ablations: Ablations, tokens: Sequence[int], units: Sequence[Sources], limit: float) -> Measured:
    """By the coded ablations of these units, which are asked for if nobody has, and direct checks.

    limit: forwards of the ablations in all, those that are known included.
    """
    ablations.ask(list_ablations(units))
    worth = ablations.sum_values(tokens, limit)
    plain = Effects(worth, ablations.everything)
    effects = plain.turn()
    weights = fit_weights(units, {kept: worth(kept) for kept in list_ablations(units)})
    ranked = rank_weights(effects.sign * weights)
    order = open_groups(effects, [units[j] for j in ranked[:CANDIDATES]])
    order += [source for j in ranked[CANDIDATES:ALONE] if len(units[j]) == 1 for source in units[j]]
    rise = LIKELY_OPPOSED * max(LEAST, HALF * abs(plain.total))
    lowest = [units[j] for j in ranked[::-1][:OPPOSED] if weights[j] <= -rise and effects is plain]
    suspects = open_groups(Effects(worth, ablations.everything, -1), lowest)
    found = read_claim(ablations, tokens, limit, order, order[:CANDIDATES], suspects)
    fitted = fit_weights(units, {kept: sum_tokens(v, tokens) for kept, v in ablations.known.items()})
    return replace(found, weights=spread_weights(units, fitted, len(ablations.sizes)))


def rank_weights(weights: Vector) -> list[int]:
    """Highest first; of those that are equal but for rounding, the first source first."""
    return [int(j) for j in np.argsort(-np.round(weights, 6), kind="stable")]


def read_claim(
    ablations: Ablations,
    tokens: Sequence[int],
    limit: float,
    order: Sequence[int],
    beside: Sequence[int],
    suspects: Sequence[int],
    most: int = CANDIDATES,
    largest: int = LARGEST_SET,
) -> Measured:
    """The reading by the sources in this order, at other margins, by log p, and what is named beside; no weights."""
    plain = Effects(ablations.sum_values(tokens, limit), ablations.everything)
    effects = plain.turn()
    own, *around = (try_reading(effects, order, share, most, largest) for share in (HALF, *AROUND_HALF))
    reading = own or name_reading(effects, "hardly any" if effects.total < LEAST else "several", ())
    log_p = Effects(ablations.sum_values(tokens, limit, of_log_p=True), ablations.everything).turn()
    by_log_p = try_reading(log_p, order, HALF, most, largest)
    against = reading.sources if effects is not plain else find_opposed(plain, suspects)
    also = find_also(effects, beside, reading.sources)
    return Measured(reading, tuple(around), by_log_p, also, against, plain.total, np.zeros(0), own is None)


def try_reading(effects: Effects, order: Sequence[int], share: float, most: int, largest: int) -> Dependence | None:
    with suppress(TooCostly):
        return read_dependence(effects, order, share, most, largest)
    return None


def open_groups(effects: Effects, units: Sequence[Sources]) -> list[int]:
    """The sources that matter: a group that gives or takes is halved until one source is left, others are dropped."""
    order: list[int] = []
    for unit in units:
        with suppress(TooCostly):
            if len(unit) > 1 and max(effects.give(unit), effects.take(unit)) < AROUND_HALF[0] * effects.total:
                continue
            while len(unit) > 1:
                halves = [frozenset(sorted(unit)[start::2]) for start in (0, 1)]
                unit = max(halves, key=lambda half: effects.give(half) + effects.take(half))
            order += unit
    return order


def spread_weights(units: Sequence[Sources], weights: Vector, count: int) -> Vector:
    """[source]: the weight of a group is divided among its sources."""
    spread = np.zeros(count)
    for unit, weight in zip(units, weights, strict=True):
        spread[sorted(unit)] = weight / len(unit)
    return spread


# --- complete measurements --------------------------------------------------------------------------------------------


def measure_completely(ablations: Ablations, tokens: Sequence[int]) -> Measured:
    """By all subsets of at most eight sources; of more, by all of them alone and left out, and the pairs of five."""
    everything, count = ablations.everything, len(ablations.sizes)
    units = [frozenset([j]) for j in range(count)]
    if count <= MOST_UNITS:
        flags = product((False, True), repeat=count)
        ablations.ask([frozenset(j for j in range(count) if kept[j]) for kept in flags])
    else:
        ablations.ask([everything, NOTHING, *units, *(everything - one for one in units)])
    limit = ablations.forwards + len(list(combinations(range(PAIRED), 2))) * 2
    effects = Effects(ablations.sum_values(tokens, limit), everything).turn()
    weights = fit_weights(units, {kept: sum_tokens(v, tokens) for kept, v in ablations.known.items()})
    ranked = rank_weights(effects.sign * weights)
    if count > MOST_UNITS:
        ranked = sorted(range(count), key=lambda j: -effects.take(units[j]))
    both = [j for j in ranked if min(effects.give(units[j]), effects.take(units[j])) >= HALF * effects.total]
    order = ranked if count <= MOST_UNITS else list(dict.fromkeys([*ranked[:PAIRED], *both]))
    found = read_claim(
        ablations, tokens, limit, order, range(count), range(count), count, 3 if count <= MOST_UNITS else 2
    )
    return replace(found, weights=weights)
