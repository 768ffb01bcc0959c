r"""What a claim rests on, from its values v(S) with only the sources S kept. Nothing here is fitted.

$$ E = v(\text{all}) - v(\emptyset), \qquad g(S) = v(S) - v(\emptyset), \qquad
   t(S) = v(\text{all}) - v(\text{all} \setminus S) $$

A set S *gives* if g(S) is at least E/2, and *takes* if t(S) is. In this order:

* *hardly any*: E is below 1;
* *one*: a source that gives and takes; of several, the one whose lower figure is highest;
* *any of*: two (then three) sources of which each gives, and which take together;
* *together*: two (then three) sources that give and take together;
* *several*: nothing of these.

If E is at most -1 the sources make the claim less likely. It is read from -v then, and is called *against*. A source
that gives or takes, but not both, is named beside, as *also*. One without which v rises by at least max(1, |E|/2)
speaks against the claim, whatever E is. A reading that is another one at .45 E or .55 E is *borderline*.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

from whyformer.results.citations import How

LEAST = 1.0  # of log-odds: below it the sources hardly matter
HALF = 0.5
AROUND_HALF = (0.45, 0.55)
LARGEST_SET = 3  # sources that are named as "any of" or "together", and that a quick reading combines

Sources = frozenset[int]
Worth = Callable[[Sources], float]  # v(S); raises TooCostly where that may not be asked
NOTHING: Sources = frozenset()


class TooCostly(Exception):
    """The value is not known, and asking for it would cost more than is allowed."""


@dataclass(frozen=True)
class Dependence:
    """How a claim depends on its sources, and which are named."""

    how: How
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Effects:
    """What sets of sources give and take; with the sign -1, of what speaks against a claim."""

    worth: Worth
    everything: Sources
    sign: int = 1

    @property
    def total(self) -> float:
        return self.give(self.everything)

    def give(self, some: Sources) -> float:
        return self.sign * (self.worth(some) - self.worth(NOTHING))

    def take(self, some: Sources) -> float:
        return self.sign * (self.worth(self.everything) - self.worth(self.everything - some))

    def turn(self) -> "Effects":
        """The same, of what the sources speak against if they make the claim less likely."""
        return Effects(self.worth, self.everything, -1) if self.total <= -LEAST else self


def read_dependence(effects: Effects, order: Sequence[int], share: float, most: int, largest: int) -> Dependence:
    """Of turned effects. order: the sources that are looked at, most important first.

    most: how many are left out and combined, the first of the order or those that give most. largest: of a set.
    """
    if effects.total < LEAST:
        return Dependence("hardly any")
    margin = share * effects.total

    def gives(*some: int) -> bool:
        return effects.give(frozenset(some)) >= margin

    def takes(*some: int) -> bool:
        return effects.take(frozenset(some)) >= margin

    both = [one for one in order[:most] if gives(one) and takes(one)]
    if both:
        best = max(both, key=lambda one: min(effects.give(frozenset([one])), effects.take(frozenset([one]))))
        return name_reading(effects, "one", (best,))
    giving = sorted(filter(gives, order), key=lambda one: -effects.give(frozenset([one])))[:most]
    for size in range(2, largest + 1):
        for some in combinations(giving, size):
            if takes(*some):
                return name_reading(effects, "any of", some)
        for some in combinations(order[:most], size):
            if not set(some) <= set(giving) and gives(*some) and takes(*some):
                return name_reading(effects, "together", some)
    return name_reading(effects, "several", ())


def name_reading(effects: Effects, how: How, some: Sequence[int]) -> Dependence:
    return Dependence(how if effects.sign > 0 else "against", tuple(sorted(some)))


def find_also(effects: Effects, order: Sequence[int], named: Sequence[int]) -> tuple[int, ...]:
    """The sources that give or take, but not both; those that may not be asked about are not named."""
    margin = max(HALF * effects.total, LEAST)

    def passes_one(one: int) -> bool:
        return len({measure(frozenset([one])) >= margin for measure in (effects.give, effects.take)}) > 1

    return list_passing([one for one in order if one not in named], passes_one)


def find_opposed(effects: Effects, order: Sequence[int]) -> tuple[int, ...]:
    """The sources without which the claim is likelier, by plain effects."""
    rise = max(LEAST, HALF * abs(effects.total))
    return list_passing(order, lambda one: effects.take(frozenset([one])) <= -rise)


def list_passing(order: Sequence[int], passes: Callable[[int], bool]) -> tuple[int, ...]:
    """Without those of which that may not be asked."""
    found = []
    for one in order:
        with suppress(TooCostly):
            found += [one] if passes(one) else []
    return tuple(sorted(found))
