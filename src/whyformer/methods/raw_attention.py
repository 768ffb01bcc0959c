r"""Raw attention.

$$ s = r\,\mathbb{E}_h[A_l^h] $$

with $r$ the readout (one-hot at CLS: the CLS row) and $l$ the last layer; `layer="mean"` averages over all layers,
which is not in the paper's tables but often shown as "the attention" of a model.
Attention read as alignment: Bahdanau, Cho & Bengio, Neural Machine Translation by Jointly Learning to Align and
Translate, ICLR 2015. arXiv:1409.0473. As a baseline for transformers: Chefer, Gur & Wolf, CVPR 2021. arXiv:2012.09838

The released code keeps the CLS row; its BERT form sets the cell (CLS, CLS) to 0, which is `own="zero"` here.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_either, allow_layer
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Bahdanau et al., ICLR 2015", class_specific=False, signed=False)
@check_method_settings(layer=allow_either(("mean",), allow_layer, 'a layer number (int) or "mean"'))
def raw_attention(
    attention: Sequence[Tensor], readout: Tensor, mask: Tensor, *, layer: int | Literal["mean"] = -1, own: str = "keep"
) -> Tensor:
    """How much attention one layer pays to each token from the position the answer is read at.

    layer: negative counts from the output; "mean" is the mean over all layers.
    own: "keep", "zero" or "min" (the smallest score of the row), the score of the readout token.
    """
    chosen = attention if layer == "mean" else [attention[resolve_layer("layer", layer, len(attention))]]
    rows = torch.stack([multiply_row(readout, heads.mean(dim=1)) for heads in chosen])
    return mask_padding(rows.mean(dim=0), readout, mask, own)
