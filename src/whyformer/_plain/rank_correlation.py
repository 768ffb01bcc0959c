"""Spearman's rank correlation of two lists of numbers."""

import numpy as np
from scipy.stats import rankdata


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of the ranks, ties sharing their mean rank; NaN if one of the two is constant."""
    first, second = rankdata(a) - (len(a) + 1) / 2, rankdata(b) - (len(b) + 1) / 2
    scale = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / scale) if scale else float("nan")
