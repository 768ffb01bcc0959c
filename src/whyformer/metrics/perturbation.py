r"""Positive and negative perturbation: how fast the right answers go when pixels are blacked out in the order of a map.

$$ \text{AUC} = 100 \int_0^{0.9} \text{accuracy}(\text{without the share } x) \, dx $$

Chefer, Gur & Wolf, Transformer Interpretability Beyond Attention Visualization, CVPR 2021. arXiv:2012.09838

As the authors computed it: pixels (of the enlarged map) are set to black in steps of 10 % up to 90 %, each step from
the clean picture; accuracy is against the label, also when the map is of the predicted class; the clean accuracy
stands at x = 0; trapezoid over [0, 0.9], times 100, not divided by 0.9 (`renormalise=True` divides). "Predicted" and
"target" of their table differ in the class that the explanation is of, nothing here. The paper's masking value and
range are not printed in the paper; both presets are what the released code and the authors' word in its issues say.
Per example the accuracies are 0 or 1, so that the mean over examples is the area under the mean curve.

Deviation: equal scores are removed in a drawn order, not as they stand (`ordering.py`).
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer.errors import MetricError
from whyformer.metrics._ordering import to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    TENTHS,
    RemovalUnit,
    StepAnswers,
    as_step_answers,
    ask_variants,
    check_fractions,
    find_units,
    keep_all_but_first,
    rank_for_removal,
    trapezoid_area,
)
from whyformer.results.explanation import Explanation

AnswerReference = Literal["label", "prediction", "target", "probability"]
PUBLISHED_SETTINGS = {"fractions": TENTHS, "per": "pixel", "fill": None, "against": "label", "renormalise": False}
PRESETS = {"paper": PUBLISHED_SETTINGS, "released": PUBLISHED_SETTINGS}


@metric(paper="Chefer et al., CVPR 2021", better="lower", kind="faithfulness", needs_truth="label", presets=PRESETS)
def positive_perturbation(
    explanation: Explanation,
    probe: Probe,
    label: Tensor,
    *,
    fractions: Sequence[float] = TENTHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    against: AnswerReference = "label",
    renormalise: bool = False,
    seed: int = 0,
) -> Measurement:
    """How long the answer stays right while the highest scored pixels (or tokens) are taken out first.

    per: "pixel" or "patch" for pictures; texts lose tokens. fill: black for pictures, the probe's choice for texts;
    also "mean", "blur", "noise", "zero", and "drop" (patches or tokens are taken out of every attention).
    against: the "label"; the model's own clean "prediction" or the explained "target" where there is no label;
    "probability" follows the probability of the target instead of being right or wrong.

    Lower is better. Control: a random order; it must lie above a good map and below the inverted one.
    """
    return measure_perturbation(explanation, probe, label, False, fractions, per, fill, against, renormalise, seed)


@metric(paper="Chefer et al., CVPR 2021", better="higher", kind="faithfulness", needs_truth="label", presets=PRESETS)
def negative_perturbation(
    explanation: Explanation,
    probe: Probe,
    label: Tensor,
    *,
    fractions: Sequence[float] = TENTHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    against: AnswerReference = "label",
    renormalise: bool = False,
    seed: int = 0,
) -> Measurement:
    """How long the answer stays right while the lowest scored pixels (or tokens) are taken out first.

    Settings as in positive_perturbation.

    Higher is better. Control: a random order; it must lie below a good map and above the inverted one.
    """
    return measure_perturbation(explanation, probe, label, True, fractions, per, fill, against, renormalise, seed)


def measure_perturbation(
    explanation: Explanation,
    probe: Probe,
    label: Tensor,
    lowest: bool,
    fractions: Sequence[float],
    per: RemovalUnit,
    fill: str | None,
    against: AnswerReference,
    renormalise: bool,
    seed: int,
) -> Measurement:
    fractions = tuple(f for f in check_fractions(fractions) if f > 0)
    if fill == "drop" and per == "pixel" and probe.is_image:
        raise MetricError("fill='drop' takes whole patches out of the attention. Remove patches: per='patch'.")
    found = find_units(explanation, probe, per=per)
    place = rank_for_removal(found, probe, seed=seed, lowest=lowest)
    counts = torch.tensor([[to_unit_count(f, n) for f in fractions] for n in found.counts])
    fill = fill or ("black" if probe.is_image else None)
    after = ask_variants(probe, keep_all_but_first(place, counts), found.shape, fill=fill, seed=seed)
    before = as_step_answers(probe.before, probe.batch)
    curve = torch.cat([score_answers(steps, explanation, label, against, before) for steps in (before, after)], 1)
    curve[~found.real.any(1)] = float("nan")
    at = (0.0, *fractions)
    width = at[-1] if renormalise else 1.0
    return Measurement(100 * trapezoid_area(curve, at) / width, curve, at)


def score_answers(
    steps: StepAnswers, explanation: Explanation, label: Any, against: str, before: StepAnswers
) -> Tensor:
    """[batch step]: 1 where the answer is the wanted one, 0 elsewhere; or the probability of the target."""
    if against == "probability":
        return steps.probability.clone()
    if against == "label":
        wanted = torch.as_tensor(label).cpu().long()
    elif against == "prediction":
        wanted = before.logits[:, 0].argmax(-1)
    elif against == "target":
        wanted = torch.tensor([target.index for target in explanation.targets])
    else:
        known = "'label', 'prediction', 'target', 'probability'"
        raise MetricError(f"against={against!r} is nothing to be right about. There are: {known}.")
    undefined = (wanted < 0)[:, None] | steps.probability.isnan() | (steps.logits.shape[-1] < 2)  # or a regression
    return (steps.logits.argmax(-1) == wanted[:, None]).double().masked_fill(undefined, float("nan"))
