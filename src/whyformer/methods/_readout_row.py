r"""Products of token-to-token matrices, of which only the row of the readout is computed.

$$ r\,(\hat A_L \cdots \hat A_2 \hat A_1) = ((r\,\hat A_L) \cdots \hat A_2)\,\hat A_1 $$

The readout $r$ says how much of the answer is read at each token. A one-hot readout selects the row of one token (the
"CLS row"); the readout of a model that pools is a weighted mean of rows. Padding has no weight in the readout and
receives no attention, so it stays out of every step.
"""

import torch
from torch import Tensor

from whyformer.errors import MethodError
from whyformer.methods._settings import OWN_MODES, check_choice


def multiply_row(row: Tensor, matrix: Tensor) -> Tensor:
    """row @ matrix, per example."""
    return torch.einsum("bq,bqk->bk", row.to(matrix.dtype), matrix)


def propagate_row(row: Tensor, matrix: Tensor, *, residual: float = 1.0, normalise: bool = False) -> Tensor:
    """row @ (matrix + residual * I); with `normalise`, rows of the sum in brackets are first scaled to sum to 1."""
    row = row.to(matrix.dtype)
    if normalise:
        # Scaling row q of the matrix equals dividing entry q of the row vector, which needs no second N x N matrix.
        total = matrix.sum(dim=-1) + residual
        row = row / total.masked_fill(total == 0, 1)
    return residual * row + multiply_row(row, matrix)


def find_readout_token(readout: Tensor) -> Tensor:
    """True at the token the answer is read at; all False for an example that is read at several tokens."""
    return readout > 1 - 1e-6


def finish_scores(scores: Tensor, readout: Tensor, mask: Tensor, own: str = "keep") -> Tensor:
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
