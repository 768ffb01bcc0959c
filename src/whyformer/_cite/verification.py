r"""Which sources does the answer rest on? Found by relevance, confirmed by leaving them out.

$$ d_S = s(x) - s(x \setminus S) $$

is the drop of the log-odds of the answer without the sources $S$. The first source $t$ is the one with the highest
relevance, and the model is explained once more without it. Then

* *one*: $d_t$ is large;
* *either*: $d_t$ is small, but $d_{\{t, t'\}}$ is large, $t'$ being first without $t$: each of them is enough;
* *together*: $d_t$ is large, and so is $d_u$ of another one: both are needed;
* *against*: $d_c$ is strongly negative: the answer is likelier without it. Or the model would rather give another
  answer, a rival, and that one rests on $c$: then $c$ states something else.

Candidates for $u$ and $c$ come from blocks that the other sources are dealt into, each left out as a whole. The blocks
with none of these are the controls. A drop is large if it is above the margin: log 2, what any control changes, and
half the log-odds of the least certain token. Half, because the first of two steps may take no more than that: without
it the model guesses the other one. To speak against the answer, it must also be a fifth of the largest drop. Whether
the answer is *supported* is decided by calibration.py, from these drops and from how certain the answer is: an answer
that no source states depends on the sources too.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer._cite.estimate import Vector, code_ablations, code_blocks, estimate_weights
from whyformer.results.citations import EITHER, ONE, TOGETHER

TWICE = math.log(2)
LEAST_SHARE = 0.2  # of the largest drop
HALF = 0.5  # of the log-odds of the least certain token: what leaving out a source that is needed takes
EITHER_SHARE = 0.3  # of these: what leaving out the first of several that say the same takes at most
ALIKE = 0.5  # of the highest relevance without the first source: others that may say the same
MOST_SETS = 4  # sources of which each is enough, in a thorough search

Relevance = Callable[[int], Vector]  # [source], without this one


@dataclass
class Evidence:
    """What the answer rests on, as far as it was asked for."""

    relevance: Vector  # with all sources
    first: int
    scores: Vector  # [source]
    drops: dict[tuple[int, ...], float] = field(default_factory=dict)  # by the sources that were left out
    basis: tuple[int, ...] = ()  # the sources that decide
    how: str = ""  # one, either or together; "" for none
    against: tuple[int, ...] = ()
    least: float = 0.0  # the log-odds of the least certain token of the answer
    margin: float = TWICE
    control: float = TWICE  # the largest change without a control; log 2 if there is none

    @property
    def likely_basis(self) -> tuple[int, ...]:
        """What decides, or else the first source."""
        return self.basis or (self.first,)

    @property
    def drop(self) -> float:
        """Of the log-odds, without what decides, or without the first source."""
        return self.drops.get(self.basis, self.drops.get((self.first,), 0.0))


def find_evidence(
    ablations: Ablations,
    relevance: Vector,
    explain_without: Relevance,
    blocks: int,
    checks: int,
    more: Tensor | None = None,
    least: float | None = None,
) -> Evidence:
    """Leave out the first source and blocks of the others, then run up to `checks` checks of candidates.

    more: [n source] bool, further ablations for the scores.
    least: the log-odds of the least certain token of the answer; by default those of the answer.
    """
    first = int(relevance.argmax())
    without_first = explain_without(first)
    dealt = code_blocks(relevance, first, blocks)
    least = ablations.full if least is None else least
    found = Evidence(relevance, first, relevance, least=least, margin=max(TWICE, HALF * least))
    leave_out(ablations, found, [(first,), *map(tuple, dealt)])
    check_candidates(ablations, found, dealt, without_first, checks)
    checked = {one[0] for one in found.drops if len(one) == 1}
    quiet = [abs(found.drops[tuple(block)]) for block in dealt if not checked & set(block)]
    found.control = max(quiet, default=TWICE)
    found.margin = max(found.margin, found.control)
    settle(found)
    found.scores = weigh_sources(ablations, found, more)
    return found


def leave_out(ablations: Ablations, found: Evidence, sets: list[tuple[int, ...]]) -> None:
    new = [one for one in sets if one and one not in found.drops]
    found.drops |= dict(zip(new, ablations.ask_without(new).tolist(), strict=True)) if new else {}


def check_candidates(
    ablations: Ablations, found: Evidence, dealt: list[list[int]], without_first: Vector, checks: int
) -> None:
    """Leave out what may decide beside the first source, or may speak against the answer, likeliest first."""
    for wanted in list_candidates(found, dealt, without_first)[:checks]:
        leave_out(ablations, found, [wanted])
    if checks < 2 or not is_either(found):
        return
    group = order_without(found.first, without_first)[:MOST_SETS]
    for size in range(2, len(group) + 1):  # three and more that say the same
        some = tuple(sorted(group[:size]))
        leave_out(ablations, found, [some])
        if found.drops[some] > max(TWICE, EITHER_SHARE * abs(found.least)):
            break


def order_without(first: int, without_first: Vector) -> list[int]:
    return [first, *(int(j) for j in np.argsort(-without_first, kind="stable") if j != first)]


def is_either(found: Evidence) -> bool:
    """Whether leaving out the first source alone takes little."""
    return found.drops[(found.first,)] < max(TWICE, EITHER_SHARE * abs(found.least))


def list_candidates(found: Evidence, dealt: list[list[int]], without_first: Vector) -> list[tuple[int, ...]]:
    alike = [j for j in order_without(found.first, without_first)[1:MOST_SETS] if is_alike(without_first, j)]
    group = tuple(sorted({found.first, *order_without(found.first, without_first)[:2], *alike}))
    lowest = int(found.relevance.argmin())
    large = found.margin
    falls = sorted((tuple(block) for block in dealt), key=lambda block: -found.drops[block])
    needed = [(max(block, key=lambda j: found.relevance[j]),) for block in falls if found.drops[block] > large]
    opposed = [(min(block, key=lambda j: found.relevance[j]),) for block in falls[::-1] if found.drops[block] < -large]
    candidates: list[tuple[int, ...]] = [(lowest,)] if found.least < 0 and found.relevance[lowest] < 0 else []
    candidates += [group] if is_either(found) and len(group) > 1 else []
    candidates += [*needed, *opposed]
    return list(dict.fromkeys(candidates)) or [group]


def is_alike(without_first: Vector, source: int) -> bool:
    return bool(without_first[source] >= ALIKE * without_first.max() > 0)


def find_rival_basis(ablations: Ablations, relevance: Vector, containing: Collection[int]) -> tuple[int, ...]:
    """What another answer rests on: the first source, or that and others, if it is unlikely without them.

    containing: the sources with this answer in them; several may state it.
    """
    first = int(relevance.argmax())
    for some in ({first}, {first, *(j for j in containing if relevance[j] > 0)}):
        if float(ablations.ask_without([sorted(some)])) > max(TWICE, HALF * ablations.full):
            return tuple(sorted(some))
    return ()


def settle(found: Evidence) -> None:
    """What decides and how, from all drops. A source that only distracts makes the answer a little less likely."""
    alone = {one[0]: drop for one, drop in found.drops.items() if len(one) == 1}
    needed = tuple(sorted(source for source, drop in alone.items() if drop > found.margin))
    rise = max(found.margin, LEAST_SHARE * max(found.drops.values()))
    found.against = tuple(sorted(source for source, drop in alone.items() if drop < -rise))
    least = max(found.margin, EITHER_SHARE * abs(found.least))
    groups = [one for one, drop in found.drops.items() if len(one) > 1 and found.first in one and drop > least]
    if needed and found.first in needed:
        found.basis, found.how = needed, ONE if len(needed) == 1 else TOGETHER
    elif groups:
        found.basis, found.how = min(groups, key=len), EITHER
    elif needed:
        found.basis, found.how = needed[:1], ONE


def weigh_sources(ablations: Ablations, found: Evidence, more: Tensor | None) -> Vector:
    """The score of each source, from coded ablations; from all that were asked for, if there are random ones."""
    keep = torch.from_numpy(code_ablations(found.relevance, found.first))
    log_odds = ablations.ask(keep)
    if more is not None:
        ablations.ask(more)
        keep = torch.tensor(list(ablations.known))
        log_odds = ablations.ask(keep)
    return estimate_weights(keep.numpy(), log_odds.numpy(), found.relevance, found.first)
