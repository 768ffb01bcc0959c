"""How similar two explanations of the same example are: the scores that are compared, and their rank correlation."""

import torch
from torch import Tensor

from whyformer._plain.tokens import Pieces
from whyformer.results.comparison import rank_correlation
from whyformer.results.explanation import Explanation


def find_content_units(explanation: Explanation, *, with_special: bool = False) -> Tensor:
    """[batch unit] bool: all patches of an image; the tokens of a text that are neither padding nor special.

    with_special: include special tokens.
    """
    rows = [
        [not p and (with_special or not s) for s, p in zip(tokens.special, tokens.padding, strict=True)]
        if isinstance(tokens, Pieces)
        else [True] * len(tokens)
        for tokens in explanation.tokens
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(explanation.scores.shape)


def select_compared_scores(explanation: Explanation, example: int) -> Tensor:
    """The scores of one example that are compared: pixels if there are any, else patches or content tokens."""
    if explanation.pixels is not None:
        return explanation.pixels[example].double().flatten()
    return explanation.scores[example].double()[find_content_units(explanation[example])[0]]


def spearman(first: Tensor, second: Tensor) -> float:
    """Rank correlation, ties sharing their mean rank; NaN if one of them is constant."""
    if len(first) < 2 or bool((first == first[0]).all()) or bool((second == second[0]).all()):
        return float("nan")
    if torch.equal(first, second):
        return 1.0  # exactly
    return float(rank_correlation(torch.stack([first.double(), second.double()]))[0, 1])
