"""A pair of texts that a model reads at once, such as a reranker: one explanation of both, split into its two texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from whyformer._explain.explain import explain
from whyformer._explain.method_call import MethodLike
from whyformer._model.model import Model
from whyformer._plain.tokens import Pieces
from whyformer._plain.words import pad_pieces
from whyformer.errors import InputError
from whyformer.results.explanation import Explanation
from whyformer.results.similarity import Similarity


def explain_pair(model: Model, a: Any, b: Any, method: MethodLike | None, settings: Mapping[str, Any]) -> Similarity:
    """The score of a model that reads both texts; there is no matrix, since it is not a product of two embeddings."""
    firsts, seconds = (list(texts) if isinstance(texts, list | tuple) else [texts] for texts in (a, b))
    if model.kind != "text":
        raise InputError(f'{model.name} has no tokenizer, and score="pair" needs texts. Open the model with one.')
    if len(firsts) != len(seconds):
        raise InputError(f"a has {len(firsts)} examples and b has {len(seconds)}. Pass two lists of the same length.")
    both = explain(model, list(zip(firsts, seconds, strict=True)), method, **settings)
    scores = torch.tensor([target.score for target in both.targets], dtype=torch.double)
    note = "The model reads both texts at once, so its score is not a sum over pairs of tokens and there is no matrix."
    return Similarity(
        take_text(both, firsts, seconds, 0), take_text(both, firsts, seconds, 1), scores, "pair", None, "", (note,)
    )


def take_text(e: Explanation, firsts: Sequence[str], seconds: Sequence[str], which: int) -> Explanation:
    """The part of an explanation that belongs to one text of each pair. Special tokens go to the text before them."""
    rows, values = [], []
    for tokens, scores, first, second in zip(e.tokens, e.scores, firsts, seconds, strict=True):
        assert isinstance(tokens, Pieces)
        places = [i for i, part in enumerate(assign_texts(tokens, len(first))) if part == which]
        shift = 0 if which == 0 else len(first) + 1
        spans = tuple(None if (s := tokens.spans[i]) is None else (s[0] - shift, s[1] - shift) for i in places)
        own = Pieces(
            tuple(tokens.pieces[i] for i in places), tuple(tokens.special[i] for i in places),
            (False,) * len(places), spans, (first, second)[which],
        )  # fmt: skip
        rows.append(own)
        values.append(scores[places])
    length = max(len(row) for row in rows)
    table = e.scores.new_zeros(len(rows), length)
    for row, value in zip(table, values, strict=True):
        row[: len(value)] = value
    others = (firsts, seconds)[1 - which]
    targets = tuple(replace(t, label=f"similarity to {other}") for t, other in zip(e.targets, others, strict=True))
    return replace(
        e, scores=table, tokens=tuple(pad_pieces(row, length) for row in rows), targets=targets,
        names=tuple((firsts, seconds)[which]), details={},
    )  # fmt: skip


def assign_texts(tokens: Pieces, length: int) -> list[int]:
    """0 for tokens of the first text, 1 for the second, -1 for padding; the second starts after `length` characters."""
    parts, now = [], 0
    for span, padding in zip(tokens.spans, tokens.padding, strict=True):
        if span is not None:
            now = int(span[0] > length)
        parts.append(-1 if padding else now)
    return parts
