r"""Products of token-to-token matrices, of which only the row of the readout is computed.

$$ r\,(\hat A_L \cdots \hat A_2 \hat A_1) = ((r\,\hat A_L) \cdots \hat A_2)\,\hat A_1 $$

The readout $r$ says how much of the answer is read at each token. A one-hot readout selects the row of one token (the
"CLS row"); the readout of a model that pools is a weighted mean of rows. Padding has no weight in the readout and
receives no attention, so it stays out of every step. The matrix of a long sequence comes in tiles of some queries each
(query_tiles.py): $r A = \sum_t r_t A_t$, and each $A_t$ is thrown away once it is multiplied.
"""

from collections.abc import Iterator
from functools import reduce

import torch
from torch import Tensor

from whyformer._engine import iterate_rows
from whyformer.errors import MethodError
from whyformer.methods._settings import OWN_MODES, check_choice


def multiply_row(row: Tensor, matrix: Tensor) -> Tensor:
    """row @ matrix, per example."""
    row = row.to(matrix.dtype)
    return sum_tiles(torch.einsum("bq,bqk->bk", row[:, queries], part) for queries, part in iterate_rows(matrix, row))


def multiply_row_by_head(row: Tensor, matrix: Tensor) -> Tensor:
    """row @ matrix, per example and head: [batch head key] from [batch query] and [batch head query key]."""
    row = row.to(matrix.dtype)
    return sum_tiles(torch.einsum("bq,bhqk->bhk", row[:, queries], part) for queries, part in iterate_rows(matrix, row))


def multiply_column(matrix: Tensor, column: Tensor) -> Tensor:
    """matrix @ column, per example."""
    return torch.cat([torch.einsum("bqk,bk->bq", part, column) for _, part in iterate_rows(matrix)], dim=1)


def propagate_row(row: Tensor, matrix: Tensor, *, residual: float = 1.0, normalise: bool = False) -> Tensor:
    """row @ (matrix + residual * I); with `normalise`, rows of the sum in brackets are first scaled to sum to 1."""
    row = row.to(matrix.dtype)
    if not normalise:
        return residual * row + multiply_row(row, matrix)
    scaled, passed = torch.zeros_like(row), []
    for queries, part in iterate_rows(matrix, row):
        # Scaling row q of the matrix equals dividing entry q of the row vector, which needs no second N x N matrix.
        total = part.sum(dim=-1) + residual
        scaled[:, queries] = row[:, queries] / total.masked_fill(total == 0, 1)
        passed.append(torch.einsum("bq,bqk->bk", scaled[:, queries], part))
    return residual * scaled + sum_tiles(iter(passed))


def sum_tiles(parts: Iterator[Tensor]) -> Tensor:
    """The sum of what the tiles give."""
    return reduce(Tensor.add_, parts)


def find_readout_token(readout: Tensor) -> Tensor:
    """True at the token the answer is read at; all False for an example that is read at several tokens."""
    return readout > 1 - 1e-6


def mask_padding(scores: Tensor, readout: Tensor, mask: Tensor, own: str = "keep") -> Tensor:
    """Set padding to exactly 0 and, with `own`, replace the score of the readout token.

    That score is the relevance of the readout token for itself. Released code sets it to 0 ("zero") or to the smallest
    score of the row ("min", itself included).
    """
    scores = scores.masked_fill(~mask, 0)
    if check_choice("own", own, OWN_MODES) == "keep":
        return scores
    cell = require_readout_token(readout, own)
    if own == "zero":
        return scores.masked_fill(cell, 0)
    lowest = scores.masked_fill(~mask, torch.inf).amin(dim=-1, keepdim=True)
    return torch.where(cell, lowest, scores)


def require_readout_token(readout: Tensor, own: str) -> Tensor:
    """Like find_readout_token, but an error if an example is read at several tokens."""
    cell = find_readout_token(readout)
    if not cell.any(dim=-1).all():
        raise MethodError(
            f"own={own!r} replaces the score of the readout token, but this model pools several tokens. "
            "Use own='keep'.",
            code="E_OPTION",
        )
    return cell
