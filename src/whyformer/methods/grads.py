r"""Grads: the gradient of attention alone.

$$ s = r\,\mathbb{E}_h\left[\nabla A_l^h\right] $$

with $r$ the readout (one-hot at CLS: the CLS row) and $l$ the last layer. A baseline of Qiang, Pan, Li, Li, Jang & Zhu,
AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022, figure 1.

The released code under this name averages the gradient to one number per head and then sets it to 0, so it returns
zeros; this is the formula of the figure, at the row of the readout. It measures what additional attention would do, not
the effect of the existing attention: a token that gets almost no attention can rank first. A token that cannot be
attended to (attention exactly 0: a causal mask) gets 0.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Qiang et al., NeurIPS 2022", class_specific=True, signed=True)
@check_method_settings()
def grads(
    attention: Sequence[Tensor], attention_grad: Sequence[Tensor], readout: Tensor, mask: Tensor, *, layer: int = -1
) -> Tensor:
    """How the explained output would change with more attention to each token; negative speaks against the target.

    layer: negative counts from the output.
    """
    chosen = resolve_layer("layer", layer, len(attention))
    possible = attention_grad[chosen].masked_fill(attention[chosen] == 0, 0)
    return mask_padding(multiply_row(readout, possible.mean(dim=1)), readout, mask)
