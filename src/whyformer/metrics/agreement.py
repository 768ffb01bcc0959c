r"""Agreement: do other methods give the same explanation?

$$ \frac{1}{|M|} \sum_{m \in M} \operatorname{rank\,corr}(\Phi(x), \Phi_m(x)) $$

Krishna et al., The Disagreement Problem in Explainable Machine Learning, TMLR 2024. arXiv:2202.01602
Methods that agree may all be wrong; methods that disagree cannot all be right.
"""

from collections.abc import Mapping

import torch

from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics._similarity import find_content_units, spearman
from whyformer.results.explanation import Explanation


@metric(paper="Krishna et al., TMLR 2024", better="higher", kind="agreement")
def agreement(explanation: Explanation, others: Mapping[str, Explanation]) -> Measurement:
    """How similar the scores are to those of other methods: the mean rank correlation over patches or tokens.

    curve: the correlation with each other method. The random baseline `chance` is not among them.

    Control: random scores get about 0, identical scores exactly 1. Undefined without another method, or if a map is
    constant.
    """
    compared = {
        label: other for label, other in others.items() if other.method != "chance" and other is not explanation
    }
    there = find_content_units(explanation)
    rows = [
        [spearman(explanation.scores[i][there[i]], other.scores[i][there[i]]) for other in compared.values()]
        for i in range(len(explanation))
    ]
    curve = torch.tensor(rows, dtype=torch.float64).reshape(len(explanation), len(compared))
    return Measurement(curve.nanmean(1), curve)
