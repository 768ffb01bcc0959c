"""Shares of relevance: maps of images on one grid, and the words of texts with where they are.

A share is a positive score divided by the sum of them. Negative scores speak against the explained class; where
evidence *for* the class is sought, they count as zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from whyformer._plain.tokens import Pieces
from whyformer._plain.words import find_group_span, group_pieces
from whyformer._runs.parts import BulkRow


def take_positive_shares(scores: np.ndarray) -> np.ndarray | None:
    """The share of each token in the sum of positive scores; None if no score is positive."""
    positive = np.asarray(scores, dtype=np.float64).clip(min=0.0)
    total = positive.sum()
    return positive / total if total > 0 and np.isfinite(total) else None


def resample_map(shares: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """A map [row column] on another grid: each patch is split by area, so that the sum stays the same."""
    down, across = (make_area_weights(old, new) for old, new in zip(shares.shape, grid, strict=True))
    return down @ shares @ across.T


@cache
def make_area_weights(old: int, new: int) -> np.ndarray:
    """[new old]: which part of each old cell falls into each new one."""
    starts, ends = np.arange(new)[:, None] * old / new, np.arange(1, new + 1)[:, None] * old / new
    cells = np.arange(old)[None]
    return (np.minimum(ends, cells + 1) - np.maximum(starts, cells)).clip(min=0.0)


def mark_border(grid: tuple[int, int]) -> np.ndarray:
    """[row column]: True for the outermost patches."""
    border = np.ones(grid, dtype=bool)
    border[1:-1, 1:-1] = False
    return border


MAX_WORD_LENGTH = 60  # characters; longer words are cut


@dataclass(frozen=True)
class WordShare:
    """One word of a text."""

    word: str  # in lower case, without punctuation at its ends
    share: float
    start: int  # the number of words before it
    end: int  # the number of words after it
    tokens: tuple[int, ...]


def list_word_shares(row: BulkRow) -> list[WordShare]:
    """The words of a text in order, without special tokens; empty if no token has a positive score."""
    shares = take_positive_shares(row.scores) if row.scores is not None else None
    if shares is None:
        return []
    pieces = restore_pieces(row)
    groups = [group for group in group_pieces(pieces) if not pieces.special[group[0]]]
    return [
        WordShare(name_word(pieces, group), float(shares[group].sum()), i, len(groups) - 1 - i, tuple(group))
        for i, group in enumerate(groups)
    ]


def restore_pieces(row: BulkRow) -> Pieces:
    assert row.tokens is not None
    count = len(row.tokens)
    special = (False,) * count if row.special is None else tuple(bool(mark) for mark in row.special)
    length = len(row.source or "")
    spans = tuple(span if span and span[1] <= length else None for span in row.spans or (None,) * count)
    return Pieces(row.tokens, special, (False,) * count, spans, row.source)


def name_word(pieces: Pieces, group: list[int]) -> str:
    """The word as it is counted; a token without a place in the text counts by its own name."""
    span = find_group_span(pieces, group)
    word = pieces.text[slice(*span)] if span and pieces.text is not None else pieces.pieces[group[0]]
    word = word.casefold()[:MAX_WORD_LENGTH]
    letters = [i for i, sign in enumerate(word) if sign.isalnum()]
    return word[letters[0] : letters[-1] + 1] if letters else word


def sum_by_word(words: Iterable[WordShare]) -> dict[str, float]:
    """The share of each word, wherever it occurs in the text."""
    totals: dict[str, float] = {}
    for word in words:
        totals[word.word] = totals.get(word.word, 0.0) + word.share
    return totals


def rank_words(totals: Mapping[str, float]) -> list[tuple[str, float]]:
    """The words with the largest share first, equal ones by name."""
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))


def special_share(row: BulkRow) -> float | None:
    """The share of positive relevance on special tokens such as [CLS]."""
    shares = take_positive_shares(row.scores) if row.scores is not None else None
    if shares is None or row.special is None:
        return None
    return float(shares[np.asarray(row.special, dtype=bool)].sum())
