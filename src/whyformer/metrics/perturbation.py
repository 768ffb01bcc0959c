r"""Positive and negative perturbation: how fast accuracy falls when pixels are blacked out in the order of a map.

$$ \text{AUC} = 100 \int_0^{0.9} \text{accuracy}(\text{without the fraction } x) \, dx $$

Chefer, Gur & Wolf, Transformer Interpretability Beyond Attention Visualization, CVPR 2021. arXiv:2012.09838

As the authors computed it: pixels (of the enlarged map) are set to black in steps of 10 % up to 90 %, each step
starting from the clean image; accuracy is against the label, even if the map explains the predicted class; the clean
accuracy is the point at x = 0; trapezoid rule over [0, 0.9], times 100, not divided by 0.9 (`renormalise=True`
divides). "Predicted" and "target" in their table differ only in the class that the explanation is for. The masking
value and the range are not printed in the paper; both presets follow the released code and the authors' statements in
its issues. Per example the accuracies are 0 or 1, so the mean over examples is the area under the mean curve.

Deviation: pixels of equal score are removed in random order, since in reading order a map that is 0 almost everywhere
would lose the top of the image first. `preset="released"` removes them in reading order.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_choice, allow_flag, take_settings_of
from whyformer.errors import InputError, MetricError
from whyformer.metrics._maps import read_whole_numbers
from whyformer.metrics._ordering import TieOrder, to_unit_count
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._removal import (
    TENTHS,
    RemovalUnit,
    StepAnswers,
    as_step_answers,
    ask_without_units,
    choose_fill,
    trapezoid_area,
)
from whyformer.metrics._settings import check_metric_settings, drop_zero_fraction
from whyformer.results.explanation import Explanation

AnswerReference = Literal["label", "prediction", "target", "probability"]
PUBLISHED_SETTINGS: dict[str, Any] = {
    "fractions": TENTHS,
    "per": "pixel",
    "fill": None,
    "against": "label",
    "renormalise": False,
}
PRESETS = {"paper": PUBLISHED_SETTINGS, "released": {**PUBLISHED_SETTINGS, "ties": "first"}}


@check_metric_settings(against=allow_choice(get_args(AnswerReference)), renormalise=allow_flag)
def measure_perturbation(
    explanation: Explanation,
    probe: Probe,
    label: Tensor,
    lowest: bool,
    *,
    fractions: Sequence[float] = TENTHS,
    per: RemovalUnit = "pixel",
    fill: str | None = None,
    against: AnswerReference = "label",
    renormalise: bool = False,
    ties: TieOrder = "random",
    seed: int = 0,
) -> Measurement:
    """The area under the curve of correct answers, with the lowest or the highest-scored pixels removed first."""
    fractions = drop_zero_fraction(fractions)
    if fill == "drop" and per == "pixel" and probe.is_image:
        raise MetricError("fill='drop' removes whole patches from the attention. Use per='patch'.", code="E_OPTION")
    fill = choose_fill(probe, fill, image="black")
    after = ask_without_units(
        explanation, probe, fractions, to_unit_count, fill=fill, seed=seed, ties=ties, per=per, lowest=lowest
    )
    before = as_step_answers(probe.before, probe.batch)
    curve = torch.cat([score_answers(steps, explanation, label, against, before) for steps in (before, after)], 1)
    if per == "patch" or not probe.is_image:
        curve[~probe.real.cpu().any(1)] = float("nan")
    at = (0.0, *fractions)
    width = at[-1] if renormalise else 1.0
    return Measurement(100 * trapezoid_area(curve, at) / width, curve, at)


@metric(paper="Chefer et al., CVPR 2021", better="lower", kind="faithfulness", needs_truth="label", presets=PRESETS)
@take_settings_of(measure_perturbation)
def positive_perturbation(explanation: Explanation, probe: Probe, label: Tensor, **settings: Any) -> Measurement:
    """How long the answer stays correct while the highest-scored pixels (or tokens) are removed first.

    per: "pixel" or "patch" for images; texts lose tokens.
    fill: by default black for images, the probe's fill for texts; also "mean", "blur", "noise", "zero", and "drop"
    (patches or tokens are removed from every attention).
    against: "label"; without labels, the model's clean "prediction" or the explained "target"; or "probability", which
    follows the probability of the target instead of right or wrong.
    renormalise: divide by the largest fraction.
    ties: the order of equal scores, "random" or the "first" in the input first, as in the released code.

    Lower is better. Control: a random order; it must score higher than a good map and lower than an inverted one.
    """
    return measure_perturbation(explanation, probe, label, False, **settings)


@metric(paper="Chefer et al., CVPR 2021", better="higher", kind="faithfulness", needs_truth="label", presets=PRESETS)
@take_settings_of(measure_perturbation)
def negative_perturbation(explanation: Explanation, probe: Probe, label: Tensor, **settings: Any) -> Measurement:
    """How long the answer stays correct while the lowest-scored pixels (or tokens) are removed first.

    Settings as in positive_perturbation.

    Higher is better. Control: a random order; it must score lower than a good map and higher than an inverted one.
    """
    return measure_perturbation(explanation, probe, label, True, **settings)


def score_answers(
    steps: StepAnswers, explanation: Explanation, label: Tensor, against: str, before: StepAnswers
) -> Tensor:
    """[batch step]: 1 if the answer is the expected class, else 0; or the probability of the target."""
    if against == "probability":
        return steps.probability.clone()
    if against == "label":
        wanted = read_whole_numbers(label, "The labels")
        if wanted.shape != (len(explanation),):
            raise InputError(
                f"Got labels of shape {list(wanted.shape)} for {len(explanation)} examples. Give one each."
            )
    elif against == "prediction":
        wanted = before.logits[:, 0].argmax(-1)
    else:
        wanted = torch.tensor([target.index for target in explanation.targets])
    undefined = (wanted < 0)[:, None] | steps.probability.isnan() | (steps.logits.shape[-1] < 2)  # or a regression
    return (steps.logits.argmax(-1) == wanted[:, None]).double().masked_fill(undefined, float("nan"))
