r"""Which sources does the answer rest on? Found by relevance, confirmed by leaving sources out.

$$ d_S = s(x) - s(x \setminus S) $$

is the drop of the log-odds of the answer without the sources $S$. The first source $t$ is the one with the highest
relevance. The coded ablations (estimate.py) leave out half of the sources each. What decides is the pattern that
explains most of their variance, with relevance on its side:

* *one*: a source $j$ is kept; mostly $t$, but ablations overrule a relevance that is wrong;
* *either*: $t$ or another source is kept: each of them is enough, and the question is about both, or both are relevant;
* *together*: $t$ and another source are kept: both are needed.

The log-odds stay where the pattern is kept and fall where it is not, by less and more than the margin: log 2 and half
the log-odds of the least certain token. Half, because the first of two steps may take no more than that: without it the
model guesses the other one. The other source of a pair is tried first: one more ablation leaves out nothing but that
one, and the log-odds must fall by more than the margin. If no pattern explains enough, nothing is said to decide. A
source $c$ speaks *against* the answer if the log-odds rise without it; or if the model would rather give another
answer, a rival, and that one rests on $c$: then $c$ states something else. Whether the answer is *supported* is decided
by calibration.py, from the drop and from how certain the answer is: an answer that no source states depends on the
sources too.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer._cite.estimate import Table, Vector, code_ablations, estimate_weights, order_others
from whyformer._cite.mention import match_each
from whyformer.results.citations import EITHER, ONE, TOGETHER

TWICE = math.log(2)
LEAST_SHARE = 0.2  # of the largest drop
HALF = 0.5  # of the log-odds of the least certain token: what leaving out a source that is needed takes
EXPLAINED = 0.9  # of the variance, with the relevance: what a source that decides alone explains
LIKELY = 0.7  # the same, for a pair that is then tried
HARDLY = 0.4  # of the margin
MOST_PAIRS = 2  # that are tried
KEPT_BACK = 1.2  # forwards for that
LIKE_FIRST = 0.5  # of the relevance of the first source
TELLING = 0.9  # how well a word of the question tells two sources from the others
RELEVANT = 0.3  # how much relevance counts beside the explained variance
OPPOSED = 0.5  # of the variance of all ablations: what a source that speaks against the answer explains
ENOUGH = 8  # ablations from which it is read off
MOST_SETS = 4  # sources of which each is enough, in a thorough search

Pattern = tuple[tuple[int, ...], str]  # sources, and how they decide
Row = tuple[bool, ...]  # the sources that an ablation keeps


@dataclass
class Evidence:
    """What the answer rests on, as far as it was asked for."""

    relevance: Vector  # with all sources
    first: int
    scores: Vector  # [source]
    drops: dict[tuple[int, ...], float] = field(default_factory=dict)  # by the sources: effects, or left out alone
    basis: tuple[int, ...] = ()  # the sources that decide
    how: str = ""  # one, either or together; "" for none
    against: tuple[int, ...] = ()
    margin: float = TWICE
    drop: float = 0.0  # of the log-odds, without what decides, or without the first source

    @property
    def likely(self) -> list[float]:
        """The relevance of each source as a share of the highest one, no less than 0."""
        share = np.maximum(self.relevance, 0.0) / max(float(self.relevance[self.first]), np.finfo(float).tiny)
        return [float(one) for one in share]

    @property
    def strong(self) -> list[float]:
        """The magnitude of the relevance of each source as a share of the largest one."""
        size = np.abs(self.relevance)
        return [float(one) for one in size / max(float(size.max()), np.finfo(float).tiny)]

    @property
    def likely_basis(self) -> tuple[int, ...]:
        """What decides, or else the first source."""
        return self.basis or (self.first,)


@dataclass(frozen=True)
class Design:
    """Ablations [n source] with their log-odds [n]."""

    keep: Table
    log_odds: Vector

    @property
    def is_enough_to_tell(self) -> bool:
        """Whether there are ENOUGH ablations, or all that few sources have."""
        rows, sources = self.keep.shape
        return rows >= ENOUGH or rows == 2**sources

    def measure_effect(self, source: int) -> float:
        """The mean with this source minus the mean without it."""
        kept, y = self.keep[:, source], self.log_odds
        return float(y[kept].mean() - y[~kept].mean()) if kept.any() and not kept.all() else 0.0

    def match(self, sources: Sequence[int], how: str) -> Table:
        """[n]: the ablations that keep one of these sources, if either is enough, or else all of them."""
        kept: Table = self.keep[:, list(sources)]
        return np.asarray(kept.any(1) if how == EITHER else kept.all(1))

    def explain_variance(self, kept: Table) -> float:
        """The share of the variance of the log-odds that is between these ablations [n] and the others."""
        y = self.log_odds
        whole = float(((y - y.mean()) ** 2).sum())
        left = sum(float(((some - some.mean()) ** 2).sum()) for some in (y[kept], y[~kept]) if len(some))
        return 1 - left / whole if whole else 0.0

    def decides(self, kept: Table, full: float, margin: float) -> bool:
        """Whether the log-odds fall by less than the margin in these ablations [n], and by more in the others."""
        if kept.all() or not kept.any():
            return False
        return full - float(self.log_odds[kept].mean()) < margin < full - float(self.log_odds[~kept].mean())

    def is_enough(self, source: int, first: int, full: float, margin: float) -> bool:
        """Whether the log-odds hardly fall where this source is kept and the first one is not."""
        kept = self.keep[:, source] & ~self.keep[:, first]
        return bool(kept.any()) and full - float(self.log_odds[kept].mean()) < HARDLY * margin

    def find_context(self, first: int, other: int, how: str) -> Row:
        """The likeliest ablation with the other source: without the first one, if either is enough, or else with it."""
        kept = self.keep[:, other] & (self.keep[:, first] == (how == TOGETHER)) & ~self.keep.all(1)
        return tuple(self.keep[kept][self.log_odds[kept].argmax()].tolist()) if kept.any() else ()

    def find_without(self, sources: Sequence[int]) -> Vector:
        """The log-odds of the ablations that keep none of these."""
        return self.log_odds[~self.keep[:, list(sources)].any(1)]


def find_evidence(
    ablations: Ablations,
    relevance: Vector,
    forwards: float,
    least: float | None = None,
    checks: int = 0,
    more: Tensor | None = None,
    asked: Table | None = None,
) -> Evidence:
    """Leave out half of the sources, by one code word after the other.

    forwards: how much these ablations may cost. least: the log-odds of the least certain token of the answer; by
    default those of the answer. checks: of candidates, left out alone. more: [n source] bool, ablations for the scores.
    asked: [word source], which sources contain each word of the question.
    """
    first = int(relevance.argmax())
    least = ablations.full if least is None else least
    found = Evidence(relevance, first, relevance, margin=max(TWICE, HALF * least))
    words, limit = torch.from_numpy(code_ablations(relevance, first)), ablations.forwards + forwards
    ablations.ask(ablations.take_affordable(words, forwards - KEPT_BACK))
    nothing: Table = np.zeros((0, len(relevance)), dtype=bool)
    partner = find_partner(ablations, found, nothing if asked is None else asked, limit)
    new = torch.tensor([tuple(word) not in ablations.known for word in words.tolist()])
    ablations.ask(ablations.take_affordable(words[new], limit - ablations.forwards))
    design = read_design(ablations)
    settle(found, design, ablations.full, partner)
    if checks:
        confirm(ablations, found, [first, *order_others(relevance, first)][:checks])
    if more is not None:
        ablations.ask(more)
        design = read_design(ablations)
    found.scores = raise_basis(estimate_weights(design.keep, design.log_odds, relevance, first), found.basis)
    return found


def raise_basis(scores: Vector, basis: tuple[int, ...]) -> Vector:
    """What decides weighs no less than any other source: its effect is large, not only often the same way."""
    raised = scores.copy()
    others = np.delete(np.abs(scores), list(basis))
    if basis and len(others):
        raised[list(basis)] = np.maximum(scores[list(basis)], others.max())
    return raised


def read_design(ablations: Ablations) -> Design:
    """All that was asked for."""
    return Design(np.array(list(ablations.known)), np.array(list(ablations.known.values())))


def leave_out(ablations: Ablations, found: Evidence, sets: list[tuple[int, ...]]) -> None:
    new = [one for one in sets if one and one not in found.drops]
    found.drops |= dict(zip(new, ablations.ask_without(new).tolist(), strict=True)) if new else {}


def find_partner(ablations: Ablations, found: Evidence, asked: Table, limit: float) -> Pattern | None:
    """The first source and another one, if both decide: an ablation that keeps the other one is asked without it.

    Sources with the same column of the code, or with columns alike where the first one is kept, are told apart by that.
    limit: what all ablations may cost.
    """
    design = read_design(ablations)
    if not design.is_enough_to_tell:
        return None
    for (some, how), row in list_tries(found, design, asked, ablations.full):
        (other,) = set(some) - {found.first}
        without = torch.tensor([[kept and j != other for j, kept in enumerate(row)]])
        if ablations.forwards + float(ablations.count_forwards(without)) > limit:
            return None
        if ablations.known[row] - float(ablations.ask(without)) > found.margin:
            return some, how
    return None


def list_tries(found: Evidence, design: Design, asked: Table, full: float) -> list[tuple[Pattern, Row]]:
    """Pairs that may decide, each with an ablation that keeps the other source: the likeliest ones, then a step.

    A pair explains the ablations better than one source does. A step changes the log-odds while the first source is
    there; the one with the relevance of the largest magnitude is tried on the whole prompt, since among few sources
    models guess it. The magnitude, because the first step of a chain speaks for other answers too: often it is below 0.
    """
    first, count = found.first, design.keep.shape[1]
    there = design.keep[:, first]
    steps = Design(design.keep[there], design.log_odds[there])
    singles = [design.explain_variance(design.keep[:, j]) for j in range(count)]
    pairs: list[tuple[float, Pattern, Row]] = []
    chain: list[tuple[float, Pattern, Row]] = []
    for j in range(count):
        if j == first:
            continue
        some = tuple(sorted((first, j)))
        for how in (EITHER, TOGETHER):
            kept, row = design.match(some, how), design.find_context(first, j, how)
            explained = design.explain_variance(kept)
            rated = explained + RELEVANT * (found.likely[j] if how == EITHER else found.strong[j])
            likely = rated >= LIKELY and explained > max(singles) and design.decides(kept, full, found.margin)
            if how == EITHER:
                likely = likely and is_alike(found, asked, j) and design.is_enough(j, first, full, found.margin)
            if row and likely:
                pairs.append((rated, (some, how), row))
        if singles[first] == max(singles) and steps.measure_effect(j) > found.margin:
            chain.append((abs(float(found.relevance[j])), (some, TOGETHER), (True,) * count))
    best = sorted(pairs, key=lambda one: -one[0])[:MOST_PAIRS] + sorted(chain, key=lambda one: -one[0])[:1]
    return [(pattern, row) for _, pattern, row in best]


def is_alike(found: Evidence, asked: Table, other: int) -> bool:
    """Whether this source is read like the first one: it is about as relevant, or both contain a word of the question
    that hardly any other source does. One that happens to state the same of something else is a guess."""
    return found.likely[other] >= LIKE_FIRST or match_each(asked, (found.first, other)) >= TELLING


def settle(found: Evidence, design: Design, full: float, partner: Pattern | None) -> None:
    """What decides and how: the first source and its partner, or the source that explains the ablations best."""
    first = found.first
    found.drop = full - float(design.find_without([first]).mean()) if not design.keep[:, first].all() else 0.0
    best = partner or choose_deciding_source(found, design, full)
    if best is not None:
        found.basis, found.how = best
        found.drop = full - float(design.log_odds[~design.match(*best)].mean())
    found.drops = {(j,): design.measure_effect(j) for j in {first, *found.basis}}
    found.against = find_opposed(design, found.relevance, max(found.margin, LEAST_SHARE * found.drop))


def choose_deciding_source(found: Evidence, design: Design, full: float) -> Pattern | None:
    """The source that decides alone: the log-odds stay with it, fall without it, and are explained by it."""
    rated = {
        j: design.explain_variance(design.keep[:, j]) + RELEVANT * found.likely[j]
        for j in range(design.keep.shape[1])
        if design.decides(design.keep[:, j], full, found.margin)
    }
    best = max(rated, key=lambda j: rated[j], default=None)
    return ((best,), ONE) if best is not None and rated[best] >= EXPLAINED else None


def find_opposed(design: Design, relevance: Vector, rise: float) -> tuple[int, ...]:
    """The sources without which the log-odds rise by more than that, if there are ablations enough to tell.

    Of sources that were left out by the same ablations, that with the lowest relevance.
    """
    if not design.is_enough_to_tell:
        return ()
    lower = [j for j in range(design.keep.shape[1]) if design.measure_effect(j) < -rise]
    lower = [j for j in lower if design.explain_variance(design.keep[:, j]) > OPPOSED]
    lowest = {design.keep[:, j].tobytes(): j for j in sorted(lower, key=lambda j: -relevance[j])}
    return tuple(sorted(lowest.values()))


def confirm(ablations: Ablations, found: Evidence, candidates: Sequence[int]) -> None:
    """A thorough search: leave out the likeliest ones alone; of several that say the same, all together."""
    found.drops = {}
    leave_out(ablations, found, [(j,) for j in candidates])
    alone = {one[0]: drop for one, drop in found.drops.items() if len(one) == 1}
    needed = tuple(sorted(source for source, drop in alone.items() if drop > found.margin))
    rise = max(found.margin, LEAST_SHARE * max(found.drops.values()))
    found.against = tuple(sorted(source for source, drop in alone.items() if drop < -rise))
    if needed:
        found.basis, found.how = needed, ONE if len(needed) == 1 else TOGETHER
        leave_out(ablations, found, [needed])
        found.drop = found.drops[needed]
        return
    group = [found.first, *(j for j in found.basis if j != found.first)]
    group += [j for j in candidates if j not in group]
    sets = [(group[0], j) for j in group[1:MOST_SETS]] + [tuple(group[:size]) for size in range(3, MOST_SETS + 1)]
    for some in (tuple(sorted(one)) for one in sets):
        leave_out(ablations, found, [some])
        if found.drops[some] > found.margin:
            found.basis, found.how, found.drop = some, EITHER, found.drops[some]
            return
    found.basis, found.how, found.drop = (), "", found.drops[(found.first,)]


def find_rival_basis(ablations: Ablations, relevance: Vector, containing: Collection[int]) -> tuple[int, ...]:
    """What another answer rests on: the first source, or that and another one, if it is unlikely without them.

    containing: the sources with this answer in them; two may state it.
    """
    first = int(relevance.argmax())
    alike = [j for j in order_others(relevance, first) if j in containing and relevance[j] > 0]
    for some in ({first}, {first, *alike[:1]}):
        if float(ablations.ask_without([sorted(some)])) > max(TWICE, HALF * ablations.full):
            return tuple(sorted(some))
    return ()
