r"""Raw attention.

$$ s = r\,\mathbb{E}_h[A_l^h] $$

with $r$ the readout (one-hot at CLS: the CLS row) and $l$ the last layer.
Attention read as alignment: Bahdanau, Cho & Bengio, Neural Machine Translation by Jointly Learning to Align and
Translate, ICLR 2015. arXiv:1409.0473. As a baseline for transformers: Chefer, Gur & Wolf, CVPR 2021. arXiv:2012.09838

The released code keeps the CLS row; its BERT form sets the cell (CLS, CLS) to 0, which is `own="zero"` here.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_layer
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_own, check_method_settings, resolve_layer


@method(paper="Bahdanau et al., ICLR 2015", class_specific=False, signed=False)
@check_method_settings(layer=allow_layer, own=allow_own)
def raw_attention(
    attention: Sequence[Tensor], readout: Tensor, mask: Tensor, *, layer: int = -1, own: str = "keep"
) -> Tensor:
    """How much attention one layer pays to each token from the position the answer is read at.

    layer: negative counts from the output.
    own: "keep", "zero" or "min" (the smallest score of the row), the score of the readout token.
    """
    chosen = attention[resolve_layer("layer", layer, len(attention))]
    return mask_padding(multiply_row(readout, chosen.mean(dim=1)), readout, mask, own)
