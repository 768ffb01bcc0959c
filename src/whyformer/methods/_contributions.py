r"""Contributions of tokens to tokens in the attention of one block, as vectors.

$$ T_i(x_j) = \sum_h A^h_{ij}\,v^h_j W_O^h + [i = j]\,x_i, \qquad y_i = \sum_j T_i(x_j) + b $$

and the same after the norms that follow in the block, with their statistics constant (_engine/capture/residual.py). The
vectors are tokens x tokens, so they are computed for a few queries at a time and measured immediately.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whyformer._engine import LinearNorm

Layers = Sequence[Tensor]  # one tensor per layer, computed on access
LayerNorms = Sequence[Sequence[LinearNorm]]  # the norms of each layer

MAX_VECTOR_ENTRIES = 2**24  # entries of the vectors held in memory at once


def measure_contributions(
    attention: Tensor,
    projected: Tensor,
    residual: Tensor | None,
    norms: Sequence[LinearNorm],
    measure: Callable[[Tensor, slice], Tensor],
) -> Tensor:
    """[batch query key]: `measure(T, queries)`, where T is [batch query key channel] for a slice of the queries.

    residual: the state x that is added at i = j; None leaves only what attention adds.
    """
    for norm in norms:
        projected = norm.apply_unscaled(projected)
        residual = norm.apply_unscaled(residual) if residual is not None else None
    batch, _, queries, keys = attention.shape
    rows = max(1, MAX_VECTOR_ENTRIES // (batch * keys * projected.size(-1)))
    measured = []
    for start in range(0, queries, rows):
        some = slice(start, min(start + rows, queries))
        vectors = torch.einsum("bhqk,bhkc->bqkc", attention[:, :, some], projected)
        if residual is not None:
            own = torch.arange(some.start, some.stop, device=vectors.device)
            vectors[:, own - some.start, own] += residual[:, some]
        for norm in norms:
            vectors = vectors * norm.scale[:, some, None, None]
        measured.append(measure(vectors, some))
    return torch.cat(measured, dim=1)


def normalise_rows(matrix: Tensor, mask: Tensor) -> Tensor:
    """Rows scaled to sum to 1, padded keys set to 0; a row of zeros stays zero."""
    matrix = matrix.masked_fill(~mask[:, None], 0)
    total = matrix.sum(dim=-1, keepdim=True)
    return matrix / total.masked_fill(total == 0, 1)
