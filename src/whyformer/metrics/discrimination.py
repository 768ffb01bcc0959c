r"""Class discrimination: are the explanations of two classes different? AttCAT calls it "confidence".

$$ \tau_b = \frac{C - D}{\sqrt{(C + D + T_a)(C + D + T_b)}} $$

Kendall's rank correlation between the scores for the explained class and for another one, with $C$ and $D$ the pairs of
units in the same and in the opposite order, $T$ those tied in one of the two only. Qiang et al., AttCAT: Explaining
Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

`preset="released"` is AttCAT's code: tau between the two lists of positions sorted by score, which is not a rank
correlation (pairs of scores with tau = 0.9 get about 0.4), over all tokens, including special ones.
"""

import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.setting_checks import allow_choice, allow_whole_number
from whyformer.errors import MetricError
from whyformer.metrics._registry import metric
from whyformer.metrics._rerun import Rerun
from whyformer.metrics._settings import check_metric_settings
from whyformer.metrics._similarity import find_content_units
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(
    paper="Qiang et al., NeurIPS 2022",
    better="lower",
    kind="discrimination",
    presets={"released": {"on": "positions"}},
)
@check_metric_settings(other=allow_whole_number(0), on=allow_choice(("scores", "positions")))
def class_discrimination(
    explanation: Explanation, probe: Probe, rerun: Rerun, *, other: int | None = None, on: str = "scores"
) -> Tensor:
    """How similarly the explanations for the target and for another class order the tokens (or patches).

    other: the class to compare with; by default the most likely one besides the target.
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


def choose_other_classes(explanation: Explanation, probe: Probe, other: int | None) -> list[int | None]:
    """The class each example is compared with; None if that would be its own."""
    logits = probe.before.logits.detach().cpu().double()
    if logits.shape[1] < 2:
        return [None] * len(explanation)
    own = torch.tensor([target.index for target in explanation.targets])
    if other is not None:
        if other >= logits.shape[1]:
            raise MetricError(f"other must be a class from 0 to {logits.shape[1] - 1}, got {other}.", code="E_OPTION")
        return [None if int(target) == other else other for target in own]
    return [int(index) for index in logits.scatter(1, own[:, None], -torch.inf).argmax(1)]


def kendall_tau(first: Tensor, second: Tensor) -> float:
    """Tau-b; NaN if one of them is constant."""
    from scipy.stats import kendalltau

    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return NAN
    return float(kendalltau(first.numpy(), second.numpy(), variant="b").statistic)
