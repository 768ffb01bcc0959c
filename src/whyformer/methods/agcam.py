r"""Attention-guided CAM (AGCAM).

$$ s = r \sum_l \sum_h (\nabla A_l^h)^+ \odot \sigma(S_l^h), \qquad A_l^h = \operatorname{softmax}(S_l^h) $$

with $r$ the readout (one-hot at CLS: the CLS row), $S$ the attention scores before the softmax and $\sigma$ the
sigmoid, which unlike the softmax does not let one peak push all other tokens to 0.
Leem & Seo, Attention Guided CAM: Visual Explanations of Vision Transformer Guided by Self-Attention, AAAI 2024,
eq. 2 to 8. arXiv:2402.04563

Attention weights determine $S$ only up to a constant per row, and models with fused attention do not expose $S$. We
choose the constant for which uniform attention has score 0, $S = \log(n A)$ with $n$ the number of tokens that can be
attended to, so that $\sigma(S) = nA / (nA + 1)$: 1/2 at the average attention, near 1 far above it. The released code
uses the model's own constant; where the rows of $S$ have a mean far from 0, its sigmoid saturates towards 0 or 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_own, check_method_settings


@method(paper="Leem & Seo, AAAI 2024", class_specific=True, signed=False)
@check_method_settings(own=allow_own)
def agcam(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    own: str = "keep",
) -> Tensor:
    """How much more attention to each token would raise the explained output, weighted by a softened attention.

    own: "keep", "zero" or "min", the score of the readout token.
    """
    scores = torch.zeros_like(readout)
    for layer in range(len(attention)):
        weighted = attention_grad[layer].clamp(min=0) * soften_attention(attention[layer])
        scores = scores + multiply_row(readout, weighted.sum(dim=1))
    return finish_scores(scores, readout, mask, own)


def soften_attention(attention: Tensor) -> Tensor:
    """The sigmoid of the pre-softmax scores, shifted so that uniform attention has score 0."""
    above = attention * (attention > 0).sum(dim=-1, keepdim=True)
    return above / (above + 1)
