r"""Class discrimination: are the explanations of two classes different? AttCAT calls it "confidence".

$$ \tau_b = \frac{C - D}{\sqrt{(C + D + T_a)(C + D + T_b)}} $$

Kendall's rank correlation between the scores for the explained class and for another one, with $C$ and $D$ the pairs of
units in the same and in the opposite order, $T$ those tied in one of the two only. Qiang et al., AttCAT: Explaining
Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

`preset="released"` is AttCAT's code: tau between the two lists of positions sorted by score, which is not a rank
correlation (pairs of scores with tau = 0.9 get about 0.4), over all tokens, including special ones. For two classes the
other class is clear; for the three of MNLI the code compares 0 with 1, 1 with 0 and 2 with 1, `other=(1, 0, 1)`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import (
    RefusedSetting,
    allow_choice,
    allow_whole_number,
    quote_value,
    to_plain_values,
)
from whyformer.errors import MetricError
from whyformer.methods._registry import Setting
from whyformer.metrics._registry import metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics._settings import check_metric_settings
from whyformer.metrics._similarity import find_content_units
from whyformer.results.explanation import Explanation

NAN = float("nan")
allow_class_number = allow_whole_number(0)
OtherClass = int | str | tuple[int, ...]


def allow_other_class(setting: str, value: Setting) -> OtherClass:
    """A class by number or label, or the number of one for each class of the model."""
    listed = to_plain_values(value)
    if isinstance(listed, str) and listed.strip():
        return listed
    try:
        if isinstance(listed, Sequence) and listed and not isinstance(listed, str):
            return tuple(int(allow_class_number(setting, number)) for number in listed)
        return int(allow_class_number(setting, listed))
    except RefusedSetting:
        raise RefusedSetting(
            f"{setting} must be a class (a whole number >= 0 or a label), or a list with one for each class, such as "
            f"(1, 0, 1); got {quote_value(value)}."
        ) from None


@metric(
    paper="Qiang et al., NeurIPS 2022", better="lower", kind="discrimination", presets={"released": {"on": "positions"}}
)
@check_metric_settings(other=allow_other_class, on=allow_choice(("scores", "positions")))
def class_discrimination(
    explanation: Explanation, probe: Probe, rerun: Rerun, *, other: OtherClass | None = None, on: str = "scores"
) -> Tensor:
    """How similarly the explanations for the target and for another class order the tokens (or patches).

    other: the class to compare with, by number or label; or a list with the rival of each class, such as (1, 0, 1), so
    that class 0 is compared with 1, 1 with 0 and 2 with 1. By default the most likely class besides the target.
    on: "scores", or "positions" as in AttCAT's code.

    Lower is better. Control: a method that ignores the class gets exactly 1; two random maps get about 0, so a low
    value does not prove a good map. Undefined if a map is constant or there is no other class.
    """
    others = choose_other_classes(explanation, probe, other)
    compared = [i for i, other_class in enumerate(others) if other_class is not None]
    value = torch.full((len(explanation),), NAN, dtype=torch.float64)
    if not compared:
        return value
    counts = find_content_units(explanation, with_special=on == "positions")
    found = rerun(target=[others[i] for i in compared], of=compared)
    for row, i in enumerate(compared):
        first, second = explanation.scores[i][counts[i]], found.scores[row][counts[i]]
        if on == "positions":
            first, second = (-first).argsort(stable=True), (-second).argsort(stable=True)
        value[i] = kendall_tau(first, second)
    return value


def choose_other_classes(explanation: Explanation, probe: Probe, other: OtherClass | None) -> list[int | None]:
    """The class each example is compared with; None if that would be its own."""
    logits = probe.before.logits.detach().cpu().double()
    if logits.shape[1] < 2:
        return [None] * len(explanation)
    own = torch.tensor([target.index for target in explanation.targets])
    if other is not None:
        rivals = list_rivals(other, probe.model.labels if isinstance(other, str) else None, logits.shape[1])
        return [None if int(target) == rivals[target] else rivals[target] for target in own]
    return [int(index) for index in logits.scatter(1, own[:, None], -torch.inf).argmax(1)]


def list_rivals(other: OtherClass, labels: Sequence[str] | None, classes: int) -> list[int]:
    """The class that each class is compared with."""
    if isinstance(other, str):
        if other not in (labels or ()):
            named = f"one of {', '.join(labels)}" if labels else "a number, since the model has no labels"
            raise MetricError(f"other must be {named}, got {other!r}.", code="E_OPTION")
        return [list(labels or ()).index(other)] * classes
    rivals = list(other) if isinstance(other, tuple) else [other] * classes
    if len(rivals) != classes:
        raise MetricError(
            f"other must have one class for each of the {classes} classes, got {len(rivals)}.", code="E_OPTION"
        )
    if max(rivals) >= classes:
        raise MetricError(f"other must be a class from 0 to {classes - 1}, got {max(rivals)}.", code="E_OPTION")
    return rivals


def kendall_tau(first: Tensor, second: Tensor) -> float:
    """Tau-b; NaN if one of them is constant."""
    from scipy.stats import kendalltau

    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return NAN
    return float(kendalltau(first.numpy(), second.numpy(), variant="b").statistic)
