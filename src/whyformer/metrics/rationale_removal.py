r"""Comprehensiveness and sufficiency: is what the explanation marks needed for the answer, and is it enough?

$$ \text{comprehensiveness} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(x \setminus r_k) \qquad
   \text{sufficiency} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(r_k) $$

with $r_k$ the share $k$ of units scored highest, $p$ the probability of the target.
DeYoung et al., ERASER: A Benchmark to Evaluate Rationalized NLP Models, ACL 2020. arXiv:1911.03429

The paper divides by $|B| + 1$ and counts the step of nothing, which gives 0; the released code takes the plain mean, as
here (`preset="paper"` divides as printed). Shares 1, 5, 10, 20, 50 % as in both. Tokens of a text are deleted; special
tokens stay; the attention mask goes with them. At least one token is removed at every share.
"""

from collections.abc import Sequence

import torch

from whyformer.explanation import Explanation
from whyformer.metric import Measured, metric
from whyformer.metrics.ordering import nearest_share
from whyformer.metrics.removal import answers, check_fractions, dropped, in_steps, only_first, ranked, units
from whyformer.probe import Probe

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
PRESETS = {"paper": {"counts_nothing": True}, "released": {"counts_nothing": False}}


@metric(paper="DeYoung et al., ACL 2020", better="higher", kind="faithfulness", presets=PRESETS)
def comprehensiveness(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = SHARES,
    fill: str | None = None,
    counts_nothing: bool = False,
    seed: int = 0,
) -> Measured:
    """How much of the target's probability goes when the highest scored tokens (or patches) are taken out.

    Higher is better. Control: a random map, for which most models also fall a little.
    """
    return fallen(explanation, probe, fractions, fill, counts_nothing, seed, keeps=False)


@metric(paper="DeYoung et al., ACL 2020", better="lower", kind="faithfulness", presets=PRESETS)
def sufficiency(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = SHARES,
    fill: str | None = None,
    counts_nothing: bool = False,
    seed: int = 0,
) -> Measured:
    """How much of the target's probability goes when only the highest scored tokens (or patches) stay.

    Lower is better; below 0 the marked part alone is more convincing than the whole. Control: a random map.
    """
    return fallen(explanation, probe, fractions, fill, counts_nothing, seed, keeps=True)


def fallen(
    explanation: Explanation,
    probe: Probe,
    fractions: Sequence[float],
    fill: str | None,
    counts_nothing: bool,
    seed: int,
    *,
    keeps: bool,
) -> Measured:
    at = check_fractions(fractions)
    found = units(explanation, probe)
    place = ranked(found, probe, seed=seed)
    counts = torch.tensor([[nearest_share(f, n) for f in at] for n in found.counts])
    keep = only_first(place, counts) if keeps else dropped(place, counts)
    fill = fill or (None if probe.is_picture else "delete")
    after = answers(probe, keep, found.shape, fill=fill, seed=seed).probability
    curve = in_steps(probe.before, probe.batch).probability - after
    curve[~found.real.any(1)] = float("nan")
    return Measured(curve.sum(1) / (len(at) + counts_nothing), curve, at)
