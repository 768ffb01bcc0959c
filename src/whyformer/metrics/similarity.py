"""How alike two explanations of the same example are: Spearman's rank correlation, and the maps it is taken of."""

import torch
from torch import Tensor

from whyformer.metrics._ordering import find_content_units
from whyformer.results.comparison import rank_correlation
from whyformer.results.explanation import Explanation


def spearman(first: Tensor, second: Tensor) -> float:
    """Rank correlation, equal scores sharing their mean rank; NaN where one of them is all the same."""
    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return float("nan")
    if torch.equal(first, second):
        return 1.0  # exactly
    return float(rank_correlation(torch.stack([first.double(), second.double()]))[0, 1])


def select_compared_scores(explanation: Explanation, example: int) -> Tensor:
    """The scores of one example that take part: pixels where there are any, else patches, or tokens that count."""
    if explanation.pixels is not None:
        return explanation.pixels[example].double().flatten()
    return explanation.scores[example].double()[find_content_units(explanation[example])[0]]


def mean_defined(values: Tensor) -> Tensor:
    """[batch] from [batch run]: the mean of what is defined, NaN where nothing is."""
    return values.nanmean(1)
