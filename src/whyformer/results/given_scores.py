"""Scores that another library or program computed, as an explanation that can be drawn, saved and judged.

    e = Explanation.from_scores(model, "a fine film", attributions, method="captum IG", target="positive")

The tokens, the target and the versions come from one run of the model. The fingerprint of each example is kept in
`details`, so that judge() and compare() find the scores of an example in any batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from whyformer._engine import Capture
from whyformer._model import EncodedBatch
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.words import group_by_unit
from whyformer.errors import InputError
from whyformer.results.patch_sums import sum_over_patches

FINGERPRINT = "fingerprint"  # in `details`: [batch 2], the upper and the lower half, which float64 holds exactly
HALF = 2**32


class HasValues(Protocol):
    """Scores of shap, a column of a table."""

    @property
    def values(self) -> np.ndarray: ...


ScoreRow: TypeAlias = Tensor | np.ndarray | Sequence[float]
GivenScores: TypeAlias = ScoreRow | Sequence[ScoreRow] | Sequence[Sequence[Sequence[float]]] | HasValues


@dataclass(frozen=True)
class ArrangedScores:
    """Given scores as an explanation holds them."""

    scores: Tensor  # batch patch | batch token
    pixels: Tensor | None  # batch height width


def arrange_given_scores(given: GivenScores, encoded: EncodedBatch, capture: Capture) -> ArrangedScores:
    """One row per example from an array, a tensor, or a list with one of them per example."""
    rows = read_rows(given, encoded.batch)
    tokens = capture.tokens[0]
    if not isinstance(tokens, Grid):
        texts = [pieces for pieces in capture.tokens if isinstance(pieces, Pieces)]
        placed = [place_on_tokens(row, pieces) for row, pieces in zip(rows, texts, strict=True)]
        return ArrangedScores(torch.stack(placed), None)
    height, width = encoded.inputs[encoded.main].shape[-2:]
    placed = [place_on_image(row, tokens, (height, width)) for row in rows]
    if placed[0].dim() == 1:
        return ArrangedScores(torch.stack(placed), None)
    pixels = torch.stack(placed)
    return ArrangedScores(sum_over_patches(pixels, tokens), pixels)


def read_rows(given: Any, batch: int) -> list[Tensor]:
    """The scores of each example; those of a single one may come without a batch axis."""
    values = getattr(given, "values", None)
    given = given if values is None or callable(values) else values
    if isinstance(given, list | tuple) and len(given) == batch and not np.isscalar(given[0]):
        rows = [as_scores(row) for row in given]
        return [row[0] if len(given) == 1 and row.dim() > 1 and len(row) == 1 else row for row in rows]
    whole = as_scores(given)
    if batch == 1 and (whole.dim() == 1 or len(whole) != 1):
        return [whole]
    if len(whole) != batch:
        raise InputError(f"There are scores for {len(whole)} examples, but {batch} inputs. Pass one row per input.")
    return list(whole)


def as_scores(values: Any) -> Tensor:
    """A tensor of finite numbers, on the CPU."""
    try:
        tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"The scores must be numbers: a tensor, an array or a list. {error}") from None
    if tensor.dim() == 0 or not tensor.numel():
        raise InputError("There are no scores. Pass one number per token, word, patch or pixel.")
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    if not bool(tensor.isfinite().all()):
        raise InputError("The scores contain NaN or infinity.")
    return tensor


def place_on_image(row: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """[patch] of scores of patches, [height width] of scores of pixels; channels are summed."""
    if row.dim() == 3 and tuple(row.shape[1:]) == size:
        row = row.sum(0)
    if tuple(row.shape) in ((len(grid),), (grid.rows, grid.columns)):
        return row.flatten()
    if tuple(row.shape) == size:
        return row
    raise InputError(
        f"Scores of shape {list(row.shape)} do not fit this image: pass {len(grid)} patches, [{grid.rows} "
        f"{grid.columns}], or pixels as the model takes them, [{size[0]} {size[1]}], with or without channels."
    )


def place_on_tokens(row: Tensor, tokens: Pieces) -> Tensor:
    """[token]: padding gets zero; without special tokens, these too; the score of a word is split among its tokens."""
    row = row.sum(-1) if row.dim() == 2 else row  # one number per channel of an embedding
    real = torch.tensor([not padding for padding in tokens.padding])
    plain = real & ~torch.tensor(tokens.special)
    # The tokens of each word, without special ones; none if the text is not known.
    groups = [] if tokens.text is None else group_by_unit(tokens, "words")
    words = [group for group in groups if not tokens.special[group[0]]]
    placed = row.new_zeros(len(tokens))
    if row.dim() == 1 and len(row) == len(tokens):
        return row.masked_fill(~real, 0)
    for chosen in (real, plain):
        if row.dim() == 1 and len(row) == int(chosen.sum()):
            placed[chosen] = row
            return placed
    if row.dim() == 1 and len(row) == len(words):
        for group, score in zip(words, row, strict=True):
            placed[group] = score / len(group)
        return placed
    raise InputError(
        f"{' x '.join(map(str, row.shape))} scores do not fit this text: it has {int(real.sum())} tokens, "
        f"{int(plain.sum())} without special ones, and {len(words)} words."
    )


def write_fingerprints(fingerprints: Iterable[int]) -> Tensor:
    return torch.tensor([divmod(number, HALF) for number in fingerprints], dtype=torch.float64)


def read_fingerprints(details: Tensor) -> Sequence[int]:
    return [int(upper) * HALF + int(lower) for upper, lower in details.tolist()]
