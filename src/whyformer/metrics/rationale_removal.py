r"""Comprehensiveness and sufficiency: are the highest-scored units necessary for the answer, and are they sufficient?

$$ \text{comprehensiveness} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(x \setminus r_k) \qquad
   \text{sufficiency} = \frac{1}{|B|} \sum_{k \in B} p(x) - p(r_k) $$

with $r_k$ the fraction $k$ of units with the highest scores, $p$ the probability of the target.
DeYoung et al., ERASER: A Benchmark to Evaluate Rationalized NLP Models, ACL 2020. arXiv:1911.03429

The paper divides by $|B| + 1$, including a step with nothing removed, which contributes 0; the released code takes the
plain mean, as here (`preset="paper"` divides as printed). Fractions 1, 5, 10, 20, 50 % as in both. Tokens of a text are
deleted together with their attention mask; special tokens stay. At least one token is removed at every fraction.
"""

from collections.abc import Sequence
from typing import Any

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_flag, take_settings_of
from whyformer.metrics._ordering import TieOrder, to_nearest_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import as_step_answers, ask_without_units, choose_fill
from whyformer.metrics._settings import check_metric_settings
from whyformer.results.explanation import Explanation

ERASER_FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.5)
PRESETS = {"paper": {"counts_nothing": True}, "released": {"counts_nothing": False}}


@check_metric_settings(counts_nothing=allow_flag)
def measure_probability_drop(
    explanation: Explanation,
    probe: Probe,
    keeps: bool,
    *,
    fractions: Sequence[float] = ERASER_FRACTIONS,
    fill: str | None = None,
    ties: TieOrder = "random",
    counts_nothing: bool = False,
    seed: int = 0,
) -> Measurement:
    """How much the target's probability falls without the highest-scored units, or with these alone."""
    fill = choose_fill(probe, fill, text="delete")
    after = ask_without_units(
        explanation, probe, fractions, to_nearest_unit_count, fill=fill, seed=seed, ties=ties, keeps=keeps
    ).probability
    curve = as_step_answers(probe.before, probe.batch).probability - after
    return Measurement(curve.sum(1) / (len(fractions) + counts_nothing), curve, tuple(fractions))


@metric(paper="DeYoung et al., ACL 2020", better="higher", kind="faithfulness", presets=PRESETS)
@take_settings_of(measure_probability_drop)
def comprehensiveness(explanation: Explanation, probe: Probe, **settings: Any) -> Measurement:
    """How much the target's probability falls when the highest-scored tokens (or patches) are removed.

    fill: by default tokens are deleted; the probe's fill for images.
    counts_nothing: divide by one step more, as printed in the paper.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Higher is better. Control: a random map, for which the probability usually falls a little too.
    """
    return measure_probability_drop(explanation, probe, False, **settings)


@metric(paper="DeYoung et al., ACL 2020", better="lower", kind="faithfulness", presets=PRESETS)
@take_settings_of(measure_probability_drop)
def sufficiency(explanation: Explanation, probe: Probe, **settings: Any) -> Measurement:
    """How much the target's probability falls when only the highest-scored tokens (or patches) are kept.

    fill: by default tokens are deleted; the probe's fill for images.
    counts_nothing: divide by one step more, as printed in the paper.
    ties: the order of equal scores, "random" or the "first" in the input first.

    Lower is better; negative if the kept part alone is more convincing than the whole input. Control: a random map.
    """
    return measure_probability_drop(explanation, probe, True, **settings)
