r"""Gamma attribution: transformer attribution with the relevance of LRP-gamma, where gradient and relevance agree.

$$ C = \bar A_{L-1} \cdots \bar A_{s+1}\,\bar A_s, \qquad
   \bar A_l = I + \mathbb{E}_h\left[(\nabla A_l^h)^+ \odot (R_{A_l^h})^+\right] $$

of which the row of the readout is the explanation. $R$ is the relevance of LRP-gamma (`lrp_gamma`, $\gamma = 0.25$).
This is whyformer's own form of `transformer_attribution` (Chefer, Gur & Wolf, Transformer Interpretability Beyond
Attention Visualization, CVPR 2021, arXiv:2012.09838). It differs in two ways.

*The relevance.* The rules of the paper divide by $u + v$ at every skip connection, where the two branches can cancel,
while its norms pass relevance on unchanged, so that it is not small there. Rounding can then decide the sign of a whole
branch. LRP-gamma in the form of slopes divides by nothing that cancels: rounding moves a map by about 1e-6 of its
largest score.

*The product.* The paper's $(\nabla A \odot R)^+$ is also positive where both factors are negative: attention that
lowers the answer then counts as evidence for it. Here both must be positive. `gradient="signed"` is the paper's
product, `gradient="none"` is $(R_{A_l})^+$ alone: it covers more of an object, and depends less on the class.

Both choices were made on photos and generated scenes, and judged on others: docs/judge-measured.md, "The defaults".
We propagate one row, $r \leftarrow r\,\bar A_l$ from the last layer to `start`, which gives the same product. Where the
answer is read at several tokens, the identity gives each of them the weight with which it is read, whatever it holds:
$r\,C - r$ is the explanation there. (On TinyViT, which reads the mean of 784 patches, that weight hid all else.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._readout_row import find_readout_token, mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer

GRADIENTS = ("positive", "signed", "none")


@method(paper="whyformer, after Chefer et al., CVPR 2021", class_specific=True, signed=False, recipe="gamma")
@check_method_settings(gradient=allow_choice(GRADIENTS))
def gamma_attribution(
    attention_grad: Sequence[Tensor],
    attention_relevance: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    gradient: str = "positive",
    start: int = 0,
    own: str = "keep",
) -> Tensor:
    """How much each token supports the target, by attention whose gradient and LRP-gamma relevance are both positive.

    gradient: "positive", its positive part weights positive relevance; "signed", the positive part of the product;
    "none", positive relevance alone.
    start: the first layer, counted from the input, that is included.
    own: "keep", "zero" or "min", the score of the readout token.
    gamma: the extra weight of contributions with the sign of the output, >= 0; a parameter of the recipe.
    """
    gained = torch.zeros_like(readout)  # r C - r, without the rounding of a difference
    for layer in reversed(range(resolve_layer("start", start, len(attention_relevance)), len(attention_relevance))):
        supporting = select_support(attention_grad[layer], attention_relevance[layer], gradient)
        gained = gained + multiply_row(readout + gained, supporting.mean(dim=1))
    reads_one = find_readout_token(readout).any(-1, keepdim=True)
    return mask_padding(torch.where(reads_one, readout + gained, gained), readout, mask, own)


def select_support(grad: Tensor, relevance: Tensor, gradient: str) -> Tensor:
    """The part of attention that supports the target: [batch head query key], never negative."""
    if gradient == "positive":
        return grad.clamp(min=0) * relevance.clamp(min=0)
    return relevance.clamp(min=0) if gradient == "none" else (grad * relevance).clamp(min=0)
