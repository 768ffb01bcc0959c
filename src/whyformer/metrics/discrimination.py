r"""Class discrimination: are the explanations of two classes different? AttCAT calls it "confidence".

$$ \tau_b = \frac{C - D}{\sqrt{(C + D + T_a)(C + D + T_b)}} $$

Kendall's rank correlation between the scores for the explained class and for another one, $C$ and $D$ the pairs of
units that stand in the same and in the opposite order, $T$ those tied in one of them only. Qiang et al., AttCAT:
Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

`preset="released"` is AttCAT's code: tau between the two lists of positions sorted by score, which is no rank
correlation (pairs of scores with tau = 0.9 get about 0.4), over all tokens, special ones too.
"""

import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.tokens import Pieces
from whyformer.errors import MetricError
from whyformer.metrics._ordering import find_content_units
from whyformer.metrics._registry import metric
from whyformer.metrics._rerun import Rerun
from whyformer.results.explanation import Explanation

NAN = float("nan")


@metric(
    paper="Qiang et al., NeurIPS 2022",
    better="lower",
    kind="discrimination",
    presets={"released": {"on": "positions"}},
)
def class_discrimination(
    explanation: Explanation, probe: Probe, rerun: Rerun, *, other: int | None = None, on: str = "scores"
) -> Tensor:
    """How much the explanation for another class orders the tokens (or patches) like the one for the target.

    other: the class to compare with; by default the likeliest one that is not the target.

    Lower is better. Control: a method that does not look at the class gets exactly 1; two maps of random numbers
    about 0, so that a low value is no proof of a good map. Undefined where a map is the same everywhere, or there
    is no other class.
    """
    if on not in ("scores", "positions"):
        raise MetricError(f"on={on!r} is not there. There are: 'scores', 'positions'.")
    rivals = choose_other_classes(explanation, probe, other)
    compared = [i for i, rival in enumerate(rivals) if rival is not None]
    value = torch.full((len(explanation),), NAN, dtype=torch.float64)
    if not compared:
        return value
    found = rerun(target=[rivals[i] for i in compared], of=compared)
    for row, i in enumerate(compared):
        there = find_unpadded_units(explanation)[i] if on == "positions" else find_content_units(explanation)[i]
        first, second = explanation.scores[i][there], found.scores[row][there]
        if on == "positions":
            first, second = (-first).argsort(stable=True), (-second).argsort(stable=True)
        value[i] = kendall_tau(first, second)
    return value


def choose_other_classes(explanation: Explanation, probe: Probe, other: int | None) -> list[int | None]:
    """The class each example is compared with; None where it would be its own."""
    logits = probe.before.logits.detach().cpu().double()
    if logits.shape[1] < 2:
        return [None] * len(explanation)
    own = torch.tensor([target.index for target in explanation.targets])
    if other is not None:
        return [None if int(target) == other else other for target in own]
    return [int(rival) for rival in logits.scatter(1, own[:, None], -torch.inf).argmax(1)]


def find_unpadded_units(explanation: Explanation) -> Tensor:
    """[batch unit]: everything but padding."""
    rows = [
        [not p for p in one.padding] if isinstance(one, Pieces) else [True] * len(one) for one in explanation.tokens
    ]
    return torch.tensor(rows, dtype=torch.bool)


def kendall_tau(first: Tensor, second: Tensor) -> float:
    """Tau-b; NaN where one of them is all the same."""
    from scipy.stats import kendalltau

    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return NAN
    return float(kendalltau(first.numpy(), second.numpy(), variant="b").statistic)
