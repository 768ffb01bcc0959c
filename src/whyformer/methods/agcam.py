r"""Attention-guided CAM (AGCAM).

$$ s = r \sum_l \sum_h (\nabla A_l^h)^+ \odot \sigma(S_l^h), \qquad A_l^h = \operatorname{softmax}(S_l^h) $$

with $r$ the readout (one-hot at CLS: the CLS row), $S$ the attention scores before the softmax and $\sigma$ the
sigmoid, which unlike the softmax does not let one peak push all other tokens to 0. Leem & Seo, Attention Guided CAM:
Visual Explanations of Vision Transformer Guided by Self-Attention, AAAI 2024, eq. 2 to 8. arXiv:2402.04563

The default, `preset="released"`, is the form of paper and released code; the two agree. $\nabla A$ is the gradient that
reaches a layer through the skip connections and MLPs after it, not through later attention: the released attention
detaches its input. $S$ are the model's own scores. Where a bias for positions is counted from the end of the padded
batch (MPT), they depend on padding.

`preset="centred"` is our variant. Its gradient takes all paths. The attention weights determine $S$ only up to a
constant per row, and where the rows of $S$ have a mean far from 0 the sigmoid saturates towards 0 or 1; so the constant
is chosen for which uniform attention has score 0, $S = \log(n A)$ with $n$ the number of tokens that can be attended
to, and $\sigma(S) = nA / (nA + 1)$: 1/2 at the average attention, near 1 far above it. On the hand-wired models of
[planted truth](planted.md) it finds what decides wherever attention is paid to it; the released form misses up to a
quarter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings

PRESET_NEEDS = {"preset": ("attention", "attention_grad")}


@method(paper="Leem & Seo, AAAI 2024", class_specific=True, signed=False, extra_needs=PRESET_NEEDS)
@check_method_settings(preset=allow_choice(("released", "centred")))
def agcam(
    attention_scores: Sequence[Tensor],
    direct_attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    attention: Sequence[Tensor] | None = None,
    attention_grad: Sequence[Tensor] | None = None,
    *,
    preset: str = "released",
    own: str = "keep",
) -> Tensor:
    """How much more attention to each token would raise the explained output, weighted by a softened attention.

    preset: "released" (the authors' and the paper's), or "centred" (all gradients; uniform attention has score 0).
    own: "keep", "zero" or "min", the score of the readout token.
    """
    scores = torch.zeros_like(readout)
    for layer in range(len(attention_scores)):
        if preset == "released":
            gradient, guide = direct_attention_grad[layer], attention_scores[layer].sigmoid()
        else:
            assert attention is not None and attention_grad is not None
            gradient, guide = attention_grad[layer], soften_attention(attention[layer])
        scores = scores + multiply_row(readout, (gradient.clamp(min=0) * guide).sum(dim=1))
    return mask_padding(scores, readout, mask, own)


def soften_attention(attention: Tensor) -> Tensor:
    """The sigmoid of the pre-softmax scores, shifted so that uniform attention has score 0."""
    above = attention * (attention > 0).sum(dim=-1, keepdim=True)
    return above / (above + 1)
