r"""GlobEnc: norms of what tokens pass on in a whole encoder block, combined by rollout.

$$ s = r\,\hat N_L \cdots \hat N_2 \hat N_1, \qquad (N_l)_{ij} = \big\lVert \mathrm{norm}_2(\mathrm{norm}_1(T_i(x_j)))
   \big\rVert_2 $$

with $T_i(x_j)$ the contribution of token $j$ to token $i$ through attention and residual of block $l$
(_contributions.py), norms as linear maps with constant statistics, and rows of $N_l$ scaled to sum to 1.
Modarressi, Fayyaz, Yaghoobzadeh & Pilehvar, GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole
Encoder Layer in Transformers, NAACL 2022. arXiv:2205.03286

The MLP is not decomposed: its output enters only through the statistics of the second norm, as in the paper. The paper
is about BERT; pre-norm models (ViT, GPT) have no norm after the additions, and $N$ is the length of $T_i(x_j)$ itself.
"""

from torch import Tensor

from whyformer.methods._contributions import LayerNorms, Layers, measure_contributions, normalise_rows
from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method


@method(paper="Modarressi et al., NAACL 2022", class_specific=False, signed=False)
def globenc(
    attention: Layers, projected: Layers, residual: Layers, norms: LayerNorms, readout: Tensor, mask: Tensor
) -> Tensor:
    """How much of each token reaches the answer, by the norm of what whole blocks pass on from token to token."""
    row = readout
    for layer in reversed(range(len(attention))):
        parts = (attention[layer], projected[layer], residual[layer], norms[layer])
        row = multiply_row(row, normalise_rows(measure_contributions(*parts, lambda t, _: t.norm(dim=-1)), mask))
    return finish_scores(row, readout, mask)
