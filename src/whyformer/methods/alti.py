r"""ALTI: aggregation of layer-wise token-to-token interactions.

$$ s = r\,\hat C_L \cdots \hat C_2 \hat C_1, \qquad
   (C_l)_{ij} = \big( \lVert y_i \rVert_1 - \lVert y_i - T_i(x_j) \rVert_1 \big)^+ $$

with $T_i(x_j)$ the contribution of token $j$ to token $i$ through attention, residual and the norm after them
(_contributions.py), $y_i$ the state that these contributions and the biases sum to, and rows of $C_l$ scaled to sum to
1: a contribution counts by how much it reduces the distance to the sum.
Ferrando, Gallego & Costa-jussa, Measuring the Mixing of Contextual Information in the Transformer, EMNLP 2022.
arXiv:2203.04212

`norm=2` uses the Euclidean norm instead; the paper finds the 1-norm better. Pre-norm models (ViT, GPT) have no norm
after the addition.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._engine import LinearNorm
from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._contributions import measure_contributions, normalise_rows
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Ferrando et al., EMNLP 2022", class_specific=False, signed=False)
@check_method_settings(norm=allow_choice((1, 2)))
def alti(
    attention: Sequence[Tensor],
    projected: Sequence[Tensor],
    residual: Sequence[Tensor],
    middle: Sequence[Tensor],
    norms: Sequence[Sequence[LinearNorm]],
    readout: Tensor,
    mask: Tensor,
    *,
    norm: int = 1,
) -> Tensor:
    """How much of each token reaches the answer, by how close its contribution comes to the whole sum in every layer.

    norm: 1 or 2, the vector norm.
    """
    row = readout
    for layer in reversed(range(len(attention))):
        total = middle[layer]

        def measure_proximity(vectors: Tensor, queries: slice, total: Tensor = total) -> Tensor:
            whole, vectors = total[:, queries, None].double(), vectors.double()  # the norms are nearly equal
            distance = (whole - vectors).norm(norm, dim=-1)
            return (whole.norm(norm, dim=-1) - distance).clamp(min=0).to(total.dtype)

        parts = (attention[layer], projected[layer], residual[layer], norms[layer][:1])
        row = multiply_row(row, normalise_rows(measure_contributions(*parts, measure_proximity), mask))
    return mask_padding(row, readout, mask)
