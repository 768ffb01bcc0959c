r"""GlobEnc: norms of what tokens pass on in a whole encoder block, combined by rollout.

$$ s = r\,\hat N_L \cdots \hat N_2 \hat N_1, \qquad (N_l)_{ij} = \big\lVert \mathrm{norm}_2(\mathrm{norm}_1(T_i(x_j)))
   \big\rVert_2 $$

with $T_i(x_j)$ the contribution of token $j$ to token $i$ through attention and residual of block $l$
(_contributions.py), norms as linear maps with constant statistics, and rows of $N_l$ scaled to sum to 1.
Modarressi, Fayyaz, Yaghoobzadeh & Pilehvar, GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole
Encoder Layer in Transformers, NAACL 2022. arXiv:2205.03286

The MLP is not decomposed: its output enters only through the statistics of the second norm, as in the paper. The paper
is about BERT; pre-norm models (ViT, GPT) have no norm after the additions, and $N$ is the length of $T_i(x_j)$ itself.

The default is our reading of the paper, which combines the layers by rollout: as in rollout, rows are scaled to sum to
1, so scores are shares of the answer and stay finite at any depth. The released code multiplies the matrices as they
are, both in its models and in its evaluation; there tokens that receive long vectors count more, and scores grow with
every layer. `preset="released"` does that and agrees with the code to 1e-12 (tests/golden/authors).
"""

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._contributions import LayerNorms, Layers, measure_contributions, normalise_rows
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import apply_preset, check_method_settings

PRESETS = {"paper": {"normalise": True}, "released": {"normalise": False}}


@method(paper="Modarressi et al., NAACL 2022", class_specific=False, signed=False)
@check_method_settings(preset=allow_choice(tuple(PRESETS)))
def globenc(
    attention: Layers,
    projected: Layers,
    residual: Layers,
    norms: LayerNorms,
    readout: Tensor,
    mask: Tensor,
    *,
    preset: str = "paper",
    normalise: bool | None = None,
) -> Tensor:
    """How much of each token reaches the answer, by the norm of what whole blocks pass on from token to token.

    preset: "paper" or "released" (products of the matrices as they are); an explicit setting overrides the preset.
    normalise: scale the rows of each layer to sum to 1.
    """
    chosen = apply_preset(PRESETS, preset, normalise=normalise)
    row = readout
    for layer in reversed(range(len(attention))):
        parts = (attention[layer], projected[layer], residual[layer], norms[layer])
        lengths = measure_contributions(*parts, lambda t, _: t.norm(dim=-1))
        passed_on = normalise_rows(lengths, mask) if chosen["normalise"] else lengths.masked_fill(~mask[:, None], 0)
        row = multiply_row(row, passed_on)
    return mask_padding(row, readout, mask)
