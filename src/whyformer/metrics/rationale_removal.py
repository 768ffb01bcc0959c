r"""Comprehensiveness and sufficiency: are the highest scored units necessary for the answer, and are they sufficient?

$$ \text{comprehensiveness} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(x \setminus r_k) \qquad
   \text{sufficiency} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(r_k) $$

with $r_k$ the fraction $k$ of units with the highest scores, $p$ the probability of the target.
DeYoung et al., ERASER: A Benchmark to Evaluate Rationalized NLP Models, ACL 2020. arXiv:1911.03429

The paper divides by $|B| + 1$, including a step with nothing removed, which contributes 0; the released code takes the
plain mean, as here (`preset="paper"` divides as printed). Fractions 1, 5, 10, 20, 50 % as in both. Tokens of a text are
deleted together with their attention mask; special tokens stay. At least one token is removed at every fraction.
"""

from collections.abc import Sequence

import torch

from whyformer._engine.probe import Probe
from whyformer.metrics._ordering import to_nearest_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    as_step_answers,
    ask_variants,
    choose_fill,
    find_units,
    keep_all_but_first,
    keep_only_first,
    rank_for_removal,
)
from whyformer.metrics._settings import check_fractions
from whyformer.results.explanation import Explanation

ERASER_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
PRESETS = {"paper": {"counts_nothing": True}, "released": {"counts_nothing": False}}


@metric(paper="DeYoung et al., ACL 2020", better="higher", kind="faithfulness", presets=PRESETS)
def comprehensiveness(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    fill: str | None = None,
    counts_nothing: bool = False,
    seed: int = 0,
) -> Measurement:
    """How much the target's probability falls when the highest scored tokens (or patches) are removed.

    fill: by default tokens are deleted; the probe's fill for images.
    counts_nothing: divide by one step more, as printed in the paper.

    Higher is better. Control: a random map, for which the probability usually falls a little too.
    """
    return measure_probability_drop(explanation, probe, fractions, fill, counts_nothing, seed, keeps=False)


@metric(paper="DeYoung et al., ACL 2020", better="lower", kind="faithfulness", presets=PRESETS)
def sufficiency(
    explanation: Explanation,
    probe: Probe,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    fill: str | None = None,
    counts_nothing: bool = False,
    seed: int = 0,
) -> Measurement:
    """How much the target's probability falls when only the highest scored tokens (or patches) are kept.

    fill: by default tokens are deleted; the probe's fill for images.
    counts_nothing: divide by one step more, as printed in the paper.

    Lower is better; negative if the kept part alone is more convincing than the whole input. Control: a random map.
    """
    return measure_probability_drop(explanation, probe, fractions, fill, counts_nothing, seed, keeps=True)


def measure_probability_drop(
    explanation: Explanation,
    probe: Probe,
    fractions: Sequence[float],
    fill: str | None,
    counts_nothing: bool,
    seed: int,
    *,
    keeps: bool,
) -> Measurement:
    at = check_fractions(fractions)
    units = find_units(explanation, probe)
    place = rank_for_removal(units, probe, seed=seed)
    counts = torch.tensor([[to_nearest_unit_count(f, n) for f in at] for n in units.counts])
    keep = keep_only_first(place, counts) if keeps else keep_all_but_first(place, counts)
    fill = choose_fill(probe, fill, text="delete")
    after = ask_variants(probe, keep, units.shape, fill=fill, seed=seed).probability
    curve = as_step_answers(probe.before, probe.batch).probability - after
    curve[~units.real.any(1)] = float("nan")
    return Measurement(curve.sum(1) / (len(at) + counts_nothing), curve, at)
