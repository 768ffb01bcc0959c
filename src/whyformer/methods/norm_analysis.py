r"""Norm-based analysis: the length of the vectors that attention sums, not only its weights.

$$ s = r N, \qquad N_{ij} = \Big\lVert \sum_h A^h_{ij}\,f^h(x_j) \Big\rVert_2, \qquad
   f^h(x) = (x W_V^h + b_V^h)\,W_O^h $$

of one layer, by default the last, with $r$ the readout.
Kobayashi, Kuribayashi, Yokoi & Inui, Attention is Not Only a Weight: Analyzing Transformers with Vector Norms, EMNLP
2020. arXiv:2004.10102. With the residual and the norm after it, `form="block"`: Kobayashi et al., Incorporating
Residual and Normalization Layers into Analysis of Masked Language Models, EMNLP 2021. arXiv:2109.07152

In "block" the vectors are $T_i(x_j)$ of _contributions.py: the token's own state is added at $i = j$, and the norm, if
there is one, is applied with constant statistics. The papers look at the matrix of one layer; for token scores we take
the row of the readout, as raw_attention does. For all layers together see globenc.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._engine import LinearNorm
from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._contributions import measure_contributions
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Kobayashi et al., EMNLP 2020", class_specific=False, signed=False)
@check_method_settings(form=allow_choice(("attention", "block")))
def norm_analysis(
    attention: Sequence[Tensor],
    projected: Sequence[Tensor],
    residual: Sequence[Tensor],
    norms: Sequence[Sequence[LinearNorm]],
    readout: Tensor,
    mask: Tensor,
    *,
    form: str = "attention",
    layer: int = -1,
) -> Tensor:
    """The length of the vector that the attention of one layer moves from each token to the readout.

    form: "attention", or "block" with the residual and the norm after it.
    layer: negative counts from the output.
    """
    chosen = resolve_layer("layer", layer, len(attention))
    own, behind = (residual[chosen], norms[chosen][:1]) if form == "block" else (None, ())
    lengths = measure_contributions(attention[chosen], projected[chosen], own, behind, lambda t, _: t.norm(dim=-1))
    return mask_padding(multiply_row(readout, lengths), readout, mask)
