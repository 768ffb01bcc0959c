"""Join the pieces of a tokenizer into whole words."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from whyformer._plain.tokens import Pieces, Tokens
from whyformer.errors import InputError

WORD_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "max": torch.amax, "mean": torch.mean}


def join_words(tokens: Tokens, scores: Tensor, reduce: str) -> tuple[Pieces, Tensor]:
    """The words of one example, and their scores: those of their pieces, reduced by `reduce`."""
    if not isinstance(tokens, Pieces):
        raise InputError("An image has no words. Use .map() for its scores by row and column.")
    if tokens.text is None:
        raise InputError("The input was token ids, so there is no text to find words in. Pass a text instead.")
    groups = group_pieces(tokens)
    spans = [find_group_span(tokens, group) for group in groups]
    joined = Pieces(
        pieces=tuple(tokens.text[slice(*s)] if s else tokens.pieces[g[0]] for s, g in zip(spans, groups, strict=True)),
        special=tuple(tokens.special[group[0]] for group in groups),
        padding=(False,) * len(groups),
        spans=tuple(spans),
        text=tokens.text,
    )
    values = [WORD_REDUCTIONS[reduce](scores[group]) for group in groups]
    return joined, torch.stack(values) if values else scores[:0]


def group_pieces(tokens: Pieces) -> list[list[int]]:
    """Runs of pieces without white space in between. Each special token is its own group; padding is left out."""
    groups: list[list[int]] = []
    for i in (i for i in range(len(tokens)) if not tokens.padding[i]):
        if groups and is_word_continuation(tokens, groups[-1], i):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def is_word_continuation(tokens: Pieces, group: Sequence[int], i: int) -> bool:
    before, here = find_group_span(tokens, group), find_group_span(tokens, [i])
    if tokens.text is None or before is None or here is None or tokens.special[group[0]] or tokens.special[i]:
        return False
    return not any(c.isspace() for c in tokens.text[before[1] : here[0]])


def find_group_span(tokens: Pieces, group: Sequence[int]) -> tuple[int, int] | None:
    """The span of these pieces, without white space at its ends (some tokenizers include the space before a word)."""
    spans = [span for i in group if (span := tokens.spans[i])]
    if not spans or tokens.text is None:
        return None
    start, end = min(s for s, _ in spans), max(e for _, e in spans)
    covered = tokens.text[start:end]
    if not covered.strip():
        return None
    return start + len(covered) - len(covered.lstrip()), end - (len(covered) - len(covered.rstrip()))


def pad_pieces(tokens: Pieces, length: int) -> Pieces:
    missing = length - len(tokens)
    return replace(
        tokens,
        pieces=tokens.pieces + ("",) * missing,
        special=tokens.special + (False,) * missing,
        padding=tokens.padding + (True,) * missing,
        spans=tokens.spans + (None,) * missing,
    )
