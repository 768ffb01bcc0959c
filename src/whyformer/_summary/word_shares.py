"""The words of a text with their shares of relevance, and where they are: counted from the start and from the end."""

from dataclasses import dataclass

import numpy as np

from whyformer._plain.tokens import Pieces
from whyformer._plain.words import find_group_span, group_pieces
from whyformer._runs.parts import BulkRow
from whyformer._summary.maps import take_positive_shares

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
    pieces = make_pieces(row)
    groups = [group for group in group_pieces(pieces) if not pieces.special[group[0]]]
    return [
        WordShare(name_word(pieces, group), float(shares[group].sum()), i, len(groups) - 1 - i, tuple(group))
        for i, group in enumerate(groups)
    ]


def make_pieces(row: BulkRow) -> Pieces:
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


def sum_by_word(words: list[WordShare]) -> dict[str, float]:
    """The share of each word, wherever it occurs in the text."""
    totals: dict[str, float] = {}
    for word in words:
        totals[word.word] = totals.get(word.word, 0.0) + word.share
    return totals


def special_share(row: BulkRow) -> float | None:
    """The share of positive relevance on special tokens such as [CLS]."""
    shares = take_positive_shares(row.scores) if row.scores is not None else None
    if shares is None or row.special is None:
        return None
    return float(shares[np.asarray(row.special, dtype=bool)].sum())
