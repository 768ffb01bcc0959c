"""What the search found, to look at: the observed attention and the other one, over the same tokens, with both answers.

A distribution is that of the audited attention at the position where the output is read (the mean over heads, or the
rollout), as everywhere in an audit. What is kept is bounded: `MOST_EXAMPLES` examples of each attention, texts of at
most `MOST_TOKENS` tokens, the `MOST_CLASSES` most probable classes. A text is kept with its tokens, an image as the
grid of its patches, without its pixels.
"""

from typing import TypedDict

import torch
from torch import Tensor

from whyformer._audit.checks.audited_attention import AuditedAttention, BlockWeights
from whyformer._audit.checks.importance import take_units
from whyformer._audit.checks.row_schemas import AuditRow
from whyformer._audit.reruns import AttentionReplay
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens

MOST_EXAMPLES = 100
MOST_TOKENS = 512
MOST_CLASSES = 4
DIGITS = 6


class SavedTokens(TypedDict):
    """The tokens of a text without padding, or the grid of an image."""

    pieces: list[str] | None
    special: list[bool] | None
    spans: list[list[int] | None] | None
    text: str | None
    grid: list[int] | None


class KeptAttention(SavedTokens):
    """The observed and the other weights of the tokens, and the probabilities of some classes with each."""

    observed: list[float]
    other: list[float]
    classes: list[int]
    before: list[float]
    after: list[float]


def keep_found(audited: AuditedAttention, example: int, weights: BlockWeights) -> KeptAttention | None:
    """The fields of a row for these weights [1 head query key] of each block; None if the example is too long."""
    replay, of = audited.replay, torch.tensor([example])
    fields = save_tokens(replay.layout.tokens[example])
    if fields is None:
        return None
    with torch.no_grad():
        other = audited.read_distribution(audited.complete_weights(weights, of), of)[0]
        after = audited.predict(weights, of)[0]
    before = replay.probabilities[example]
    classes = before.topk(min(MOST_CLASSES, before.size(-1))).indices
    return {
        **fields,
        "observed": list_shown_weights(replay, example, audited.distribution[example]),
        "other": list_shown_weights(replay, example, other),
        "classes": classes.tolist(),
        "before": round_values(before[classes]),
        "after": round_values(after[classes]),
    }


def save_tokens(tokens: ScoredTokens) -> SavedTokens | None:
    """Tokens without padding, as plain values; None if there are too many."""
    if len(tokens) > MOST_TOKENS:
        return None
    if isinstance(tokens, Grid):
        return SavedTokens(pieces=None, special=None, spans=None, text=None, grid=[tokens.rows, tokens.columns])
    real = [i for i, is_padding in enumerate(tokens.padding) if not is_padding]
    return {
        "pieces": [tokens.pieces[i] for i in real],
        "special": [tokens.special[i] for i in real],
        "spans": [None if (span := tokens.spans[i]) is None else list(span) for i in real],
        "text": tokens.text,
        "grid": None,
    }


def rebuild_tokens(saved: AuditRow) -> ScoredTokens:
    if saved.get("grid"):
        return Grid(*saved["grid"])
    spans = tuple(None if span is None else (span[0], span[1]) for span in saved["spans"])
    pieces = tuple(saved["pieces"])
    return Pieces(pieces, tuple(saved["special"]), (False,) * len(pieces), spans, saved.get("text"))


def list_shown_weights(replay: AttentionReplay, example: int, row: Tensor) -> list[float]:
    """The weights of the saved tokens of an example, from [token]."""
    tokens = replay.layout.tokens[example]
    if isinstance(tokens, Grid):
        return round_values(take_units(replay, row[None])[0])
    return round_values(row[~torch.tensor(tokens.padding, device=row.device)])


def round_values(values: Tensor) -> list[float]:
    return [round(float(value), DIGITS) for value in values.double().cpu()]
