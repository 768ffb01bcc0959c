r"""Partial LRP: relevance propagation that stops at the attention of one layer.

$$ s = r\,\mathbb{E}_h\left[(R_{A_l^h})^+\right] $$

with $r$ the readout and $R_{A_l}$ the relevance that arrives at the attention of layer $l$, by default the last.
Voita, Talbot, Moiseev, Sennrich & Titov, Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting,
the Rest Can Be Pruned, ACL 2019. arXiv:1905.09418. As token scores: the baseline of that name in Chefer, Gur & Wolf,
CVPR 2021. arXiv:2012.09838

The released baseline uses rules that do not conserve relevance (`recipe="chefer_baseline"`), and its BERT form sets the
cell (CLS, CLS) to 0 (`own="zero"`). We use the conservative rules by default, as the AttCAT code does.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Voita et al., ACL 2019", class_specific=True, signed=False, recipe="chefer")
@check_method_settings()
def partial_lrp(
    attention_relevance: Sequence[Tensor], readout: Tensor, mask: Tensor, *, layer: int = -1, own: str = "keep"
) -> Tensor:
    """The positive relevance that arrives at the attention of one layer from the readout to each token.

    layer: negative counts from the output.
    own: "keep", "zero" or "min" (the smallest score of the row), the score of the readout token.
    """
    chosen = attention_relevance[resolve_layer("layer", layer, len(attention_relevance))]
    return mask_padding(multiply_row(readout, chosen.clamp(min=0).mean(dim=1)), readout, mask, own)
