r"""Is a citation supported? The log-odds of the answer without the source, beside those without unimportant ones.

$$ d_j = s(x) - s(x \setminus j) , \qquad
   m = \max\bigl(\log 2, \; \max_{c \in C} |d_c|, \; \tfrac15 \, d_{\text{together}}\bigr) $$

with $s$ the log-odds of the answer, summed over its tokens. A source $j$ is *supported* if $d_j > m$, *contradicted* if
$d_j < -m$, and *not needed* otherwise. $C$, the controls, are sources with scores near 0: what leaving out one of them
changes is what leaving out anything changes. $d_{\text{together}}$ is the drop without all top sources at once: a model
that is sharper by a constant changes all its log-odds by it, so a fixed margin would be crossed by chance. And the odds
have to change at least by a factor of two.

Sources with strongly negative scores are verified too. "Not needed" does not mean unused: of two sources that say the
same, neither is needed alone. And an answer that the model would hardly give itself (likelihood.py), or that no source
contains (mention.py), is supported by nothing: where its log-odds fall without a source, the verdict is *caution*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from whyformer._cite.ablations import Ablations
from whyformer.results.citations import CAUTION, CONTRADICTED, NOT_NEEDED, SUPPORTED

TWICE = math.log(2)
LEAST_SHARE = 0.2  # of the drop without all top sources
NEAR_ZERO = 0.1  # of the magnitudes of all scores: controls have less, strongly negative sources at least as much
MOST_CONTROLS = 5


@dataclass(frozen=True)
class Verification:
    """What leaving out the top sources, strongly negative ones and the controls did."""

    top: tuple[int, ...]  # sources, highest score first
    against: tuple[int, ...]  # sources with strongly negative scores, lowest first
    controls: tuple[int, ...]
    drops: dict[int, float]  # of the log-odds, by source
    margin: float
    together: float | None  # the drop without all top sources at once; None for fewer than two
    doubts: tuple[str, ...] = ()  # why the answer is supported by nothing

    def judge(self, source: int) -> str | None:
        """The verdict on one of the verified sources; None for any other."""
        if source not in self.top + self.against:
            return None
        drop = self.drops[source]
        if drop > self.margin:
            return CAUTION if self.doubts else SUPPORTED
        return CONTRADICTED if drop < -self.margin else NOT_NEEDED


def choose_top(scores: Tensor, count: int) -> tuple[int, ...]:
    """The sources with the highest scores; of equals, the one that comes first."""
    return tuple(scores.argsort(descending=True, stable=True)[:count].tolist())


def choose_against(scores: Tensor, top: Sequence[int]) -> tuple[int, ...]:
    """The sources with strongly negative scores, as many as the top ones, not among them."""
    low = -NEAR_ZERO * float(scores.abs().sum())
    order = [source for source in scores.argsort(stable=True).tolist() if source not in top]
    return tuple(source for source in order[: len(top)] if float(scores[source]) < 0 and float(scores[source]) <= low)


def choose_controls(scores: Tensor, taken: Sequence[int], count: int) -> tuple[int, ...]:
    """The sources with the scores nearest to 0, up to `count` and five, not among those taken."""
    high = NEAR_ZERO * float(scores.abs().sum())
    order = [source for source in scores.abs().argsort(stable=True).tolist() if source not in taken]
    near = [source for source in order if abs(float(scores[source])) < high or not high]
    return tuple(near[: min(count, MOST_CONTROLS)])


def verify_sources(ablations: Ablations, scores: Tensor, count: int, doubts: Sequence[str] = ()) -> Verification:
    """Leave out the top sources one by one and all together, strongly negative ones, and the controls."""
    top = choose_top(scores, count)
    against = choose_against(scores, top)
    controls = choose_controls(scores, top + against, count)
    groups = [top] if len(top) > 1 else []
    alone = (*top, *against, *controls)
    found = ablations.ask_without([*([source] for source in alone), *groups]).tolist()
    drops = dict(zip(alone, found, strict=False))
    together = found[-1] if groups else None
    margin = max([TWICE, LEAST_SHARE * (together or 0.0), *(abs(drops[control]) for control in controls)])
    return Verification(top, against, controls, drops, margin, together, tuple(doubts))


def describe_verification(verified: Verification, names: Sequence[str]) -> list[str]:
    """Sentences on what the verdicts cannot say."""
    notes = [f"Caution: {doubt}" for doubt in verified.doubts]
    for control in verified.controls:
        if abs(verified.drops[control]) > TWICE:
            notes.append(
                f"Leaving out {names[control]}, a control with a score near 0, changes the log-odds of the answer by "
                f"{-verified.drops[control]:+z.2f}: the scores miss it, and only larger changes count."
            )
    if not verified.controls:
        notes.append("No source is left with a score near 0, so there are no controls for the verdicts.")
    none = not any(verified.judge(source) in (SUPPORTED, CAUTION) for source in verified.top)
    if none and verified.together is not None and verified.together > verified.margin:
        listed = ", ".join(names[source] for source in verified.top)
        notes.append(
            f"No single citation is needed, but without all of them ({listed}) the log-odds fall by "
            f"{verified.together:z.2f}: any one of them may suffice."
        )
    return notes
