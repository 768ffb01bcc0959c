r"""Row algebra: the answer is read at `readout`, so of a product of N x N matrices only one row is ever needed.

$$ r\,(\hat A_L \cdots \hat A_2 \hat A_1) = ((r\,\hat A_L) \cdots \hat A_2)\,\hat A_1 $$

A one-hot readout takes the row of one token (the "CLS row"); a mixed one, of a model that pools, the same mixture of
rows. Padding has no weight in the readout and no attention falls on it, so it stays out of every step.
"""

import torch
from torch import Tensor

from whyformer.errors import MethodError
from whyformer.methods._settings import check_choice

OWN_MODES = ("keep", "zero", "min")


def multiply_row(row: Tensor, matrix: Tensor) -> Tensor:
    """row @ matrix, example by example."""
    return torch.einsum("bq,bqk->bk", row.to(matrix.dtype), matrix)


def propagate_row(row: Tensor, matrix: Tensor, *, residual: float = 1.0, normalise: bool = False) -> Tensor:
    """row @ (matrix + residual * I); with `normalise` the rows of the bracket are first scaled to sum to 1."""
    row = row.to(matrix.dtype)
    if normalise:
        # Scaling row q of a matrix is dividing entry q of what it is multiplied by: no N x N is written.
        total = matrix.sum(dim=-1) + residual
        row = row / total.masked_fill(total == 0, 1)
    return residual * row + multiply_row(row, matrix)


def find_readout_token(readout: Tensor) -> Tensor:
    """True at the token the answer is read at; nowhere for an example that is read at several."""
    return readout > 1 - 1e-6


def finish_scores(scores: Tensor, readout: Tensor, mask: Tensor, own: str = "keep") -> Tensor:
    """The scores with exactly 0 at padding and, unless it is kept, another value at the token the answer is read at.

    That cell is how much the readout token says about itself. Released codes drop it ("zero") or hide it ("min", the
    smallest score of the row, its own included).
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
    """own_cell, if every example has one."""
    cell = find_readout_token(readout)
    if not cell.any(dim=-1).all():
        raise MethodError(
            f"own={own!r} changes the cell of the token the answer is read at, but this model reads it at several. "
            "Use own='keep'."
        )
    return cell
