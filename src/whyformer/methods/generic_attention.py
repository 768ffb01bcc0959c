r"""Generic attention explainability, the form for self-attention.

$$ R \leftarrow R + \bar A_l R, \qquad \bar A_l = \mathbb{E}_h\left[(\nabla A_l^h \odot A_l^h)^+\right] $$

from $R = I$, layer by layer from the input to the output; then the row of the readout.
Chefer, Gur & Wolf, Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers,
ICCV 2021, eq. 5 and 6. arXiv:2103.15679

A model with self-attention alone needs only these two of the paper's rules; there is no normalisation, as in the
released code. The released BERT-like models read a token other than CLS; here the readout handles this.

We propagate one row, $r \leftarrow r + r \bar A_l$ from the last layer to `start`, which gives the same product.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._encoder_decoder import class_attention, score_two_streams
from whyformer.methods._readout_row import mask_padding, propagate_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Chefer et al., ICCV 2021", class_specific=True, signed=False)
@check_method_settings()
def generic_attention(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    streams: Sequence[int],
    *,
    start: int = 0,
    own: str = "keep",
) -> Tensor:
    """How much each token supports the target, through attention that would raise its output, over all layers.

    start: the first layer, counted from the input, that is included; -1 is the last layer alone.
    own: "keep", "zero" or "min", the score of the readout token.
    """
    row, layers = readout, range(resolve_layer("start", start, len(attention)), len(attention))
    if len(streams) > 1:
        mixing = [class_attention(attention[layer], attention_grad[layer]) for layer in layers]
        return mask_padding(score_two_streams(mixing, readout, streams), readout, mask, own)
    for layer in reversed(layers):
        row = propagate_row(row, class_attention(attention[layer], attention_grad[layer]))
    return mask_padding(row, readout, mask, own)
