r"""Agreement: do other methods say the same?

$$ \frac{1}{|M|} \sum_{m \in M} \operatorname{rank\,corr}(\Phi(x), \Phi_m(x)) $$

Krishna et al., The Disagreement Problem in Explainable Machine Learning, TMLR 2024. arXiv:2202.01602
Methods that agree may all be wrong; methods that disagree cannot all be right.
"""

from collections.abc import Mapping

import torch

from whyformer.metrics._ordering import find_content_units
from whyformer.metrics._registry import Measurement, metric
from whyformer.metrics.similarity import mean_defined, spearman
from whyformer.results.explanation import Explanation


@metric(paper="Krishna et al., TMLR 2024", better="higher", kind="agreement")
def agreement(explanation: Explanation, others: Mapping[str, Explanation]) -> Measurement:
    """How alike the scores are to those of the other methods: the mean rank correlation over patches or tokens.

    curve: with each of them. The random baseline `chance` is left out of the others. Control: random scores lie
    around 0, the same scores get exactly 1. Undefined without another method, or where a map is the same everywhere.
    """
    compared = {label: one for label, one in others.items() if one.method != "chance" and one is not explanation}
    there = find_content_units(explanation)
    rows = [
        [spearman(explanation.scores[i][there[i]], other.scores[i][there[i]]) for other in compared.values()]
        for i in range(len(explanation))
    ]
    curve = torch.tensor(rows, dtype=torch.float64).reshape(len(explanation), len(compared))
    return Measurement(mean_defined(curve), curve)
