r"""ALTI: aggregation of layer-wise token-to-token interactions.

$$ s = r\,\hat C_L \cdots \hat C_2 \hat C_1, \qquad
   (C_l)_{ij} = \big( \lVert y_i \rVert_1 - \lVert y_i - T_i(x_j) \rVert_1 \big)^+ $$

with $T_i(x_j)$ what token $j$ brings to token $i$ in the attention, the residual and the norm behind them
(contributions.py), $y_i$ the state they and the biases add up to, and rows of $C_l$ scaled to sum to 1: a token counts
by how much nearer it brings the sum.
Ferrando, Gallego & Costa-jussa, Measuring the Mixing of Contextual Information in the Transformer, EMNLP 2022.
arXiv:2203.04212

`norm=2` measures with the Euclidean length instead; the paper finds the 1-norm better. In models that normalise first
(ViT, GPT) there is no norm behind the addition.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whyformer.methods._contributions import measure_contributions, normalise_rows
from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_choice


@method(paper="Ferrando et al., EMNLP 2022", class_specific=False, signed=False)
def alti(
    attention: Sequence[Tensor],
    projected: Sequence[Tensor],
    residual: Sequence[Tensor],
    middle: Sequence[Tensor],
    norms: Sequence[Any],
    readout: Tensor,
    mask: Tensor,
    *,
    norm: int = 1,
) -> Tensor:
    """How much of each token reaches the answer, by how near it brings the sum in every layer.

    norm: 1 or 2, how vectors are measured.
    """
    check_choice("norm", norm, (1, 2))
    row = readout
    for layer in reversed(range(len(attention))):
        total = middle[layer]

        def nearer(vectors: Tensor, queries: slice, total: Tensor = total) -> Tensor:
            there = total[:, queries, None]
            return (there.norm(norm, dim=-1) - (there - vectors).norm(norm, dim=-1)).clamp(min=0)

        parts = (attention[layer], projected[layer], residual[layer], norms[layer][:1])
        row = multiply_row(row, normalise_rows(measure_contributions(*parts, nearer), mask))
    return finish_scores(row, readout, mask)
