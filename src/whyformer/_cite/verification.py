r"""Is a citation supported? The answer's log-probability without the source, beside that without unimportant ones.

$$ d_j = \log p(a \mid x) - \log p(a \mid x \setminus j) , \qquad m = \max\bigl(\log 2, \; \max_{c \in C} |d_c|\bigr) $$

A source $j$ is *supported* if $d_j > m$, *contradicted* if $d_j < -m$, and *not needed* otherwise. $C$, the controls,
are the sources whose scores are nearest to 0: what leaving out one of them changes is what leaving out anything
changes. And the answer has to become at least twice as unlikely, or likely, for a verdict. "Not needed" does not mean
unused: of two sources that say the same, neither is needed alone. So the top sources are also left out together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer.results.citations import CONTRADICTED, NOT_NEEDED, SUPPORTED

TWICE = math.log(2)
MOST_CONTROLS = 5


@dataclass(frozen=True)
class Verification:
    """What leaving out the top sources and the controls did."""

    top: tuple[int, ...]  # sources, highest score first
    controls: tuple[int, ...]
    drops: dict[int, float]  # of the log-probability, by source
    margin: float
    together: float | None  # the drop without all top sources at once; None for fewer than two

    def judge(self, source: int) -> str | None:
        """The verdict on one of the top sources; None for any other."""
        if source not in self.top:
            return None
        drop = self.drops[source]
        return SUPPORTED if drop > self.margin else CONTRADICTED if drop < -self.margin else NOT_NEEDED


def choose_top(scores: Tensor, count: int) -> tuple[int, ...]:
    """The sources with the highest scores; of equals, the one that comes first."""
    return tuple(scores.argsort(descending=True, stable=True)[:count].tolist())


def choose_controls(scores: Tensor, top: Sequence[int]) -> tuple[int, ...]:
    """The sources with the scores nearest to 0, as many as the top ones and at most five, not among them."""
    order = [source for source in scores.abs().argsort(stable=True).tolist() if source not in top]
    return tuple(order[: min(len(top), MOST_CONTROLS)])


def verify_sources(ablations: Ablations, scores: Tensor, count: int) -> Verification:
    """Leave out the top sources one by one, then all together, and the controls one by one."""
    top = choose_top(scores, count)
    controls = choose_controls(scores, top)
    groups = [top] if len(top) > 1 else []
    found = ablations.ask_without([*([source] for source in (*top, *controls)), *groups]).tolist()
    drops = dict(zip((*top, *controls), found, strict=False))
    margin = max([TWICE, *(abs(drops[control]) for control in controls)])
    return Verification(top, controls, drops, margin, found[-1] if groups else None)


def describe_verification(verified: Verification, names: Sequence[str]) -> list[str]:
    """Sentences on what the verdicts cannot say."""
    notes = []
    for control in verified.controls:
        if abs(verified.drops[control]) > TWICE:
            notes.append(
                f"Leaving out {names[control]}, a control with a score near 0, changes the log-probability of the "
                f"answer by {-verified.drops[control]:+.2f}: the scores miss it, and only larger changes count."
            )
    if not verified.controls:
        notes.append("Every source was cited, so there are no controls: a factor of two alone decides the verdicts.")
    none = not any(verified.judge(source) == SUPPORTED for source in verified.top)
    if none and verified.together is not None and verified.together > verified.margin:
        listed = ", ".join(names[source] for source in verified.top)
        notes.append(
            f"No single citation is needed, but without all of them ({listed}) the log-probability falls by "
            f"{verified.together:.2f}: any one of them may suffice."
        )
    return notes


def draw_random_sets(sources: int, size: int, draws: int, generator: torch.Generator) -> list[list[int]]:
    """Random sets of sources of one size."""
    return [torch.randperm(sources, generator=generator)[:size].tolist() for _ in range(draws)]
