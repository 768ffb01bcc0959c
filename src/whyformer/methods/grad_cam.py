r"""Grad-CAM on attention.

$$ s = \left(\mathbb{E}_h[w_h\,r A^h]\right)^+, \qquad w_h = \mathbb{E}_{j \in P}\left[(r\,\nabla A^h)_j\right] $$

with $r$ the readout, $P$ the patches (or words) and $A$ the attention of one layer, by default the last; heads take the
role of channels. Selvaraju et al., Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization,
ICCV 2017, section 3. arXiv:1610.02391. On attention: the baseline of that name in Chefer, Gur & Wolf, CVPR 2021
(arXiv:2012.09838), from the released code.

That code has two forms. `form="vit"` is the formula above. `form="bert"` averages the gradient over the *whole* matrix,
clips the whole matrix at 0, takes the row last and sets the score of the readout token to 0 (not in a model that pools,
which has no readout token). Both end with min-max scaling, `normalise=True`: over the patches, or over the whole
matrix. Where a map is nowhere positive the released code divides 0 by 0; here such a map is all zero. Means and ranges
never include padding. The released ViT code drops special tokens; here they keep their score, clipped to [0, 1] when
scaled.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._readout_row import find_readout_token, mask_padding, multiply_row, multiply_row_by_head
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer


@method(paper="Selvaraju et al., ICCV 2017", class_specific=True, signed=False)
@check_method_settings(form=allow_choice(("vit", "bert")))
def grad_cam(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    special: Tensor,
    *,
    form: str = "vit",
    layer: int = -1,
    normalise: bool = False,
) -> Tensor:
    """Attention to each token from the heads of one layer that support the target.

    form: "vit" or "bert", the two forms of the released code.
    layer: negative counts from the output.
    normalise: scale scores to [0, 1], as in the released code.
    """
    chosen = resolve_layer("layer", layer, len(attention))
    scores = FORMS[form](attention[chosen], attention_grad[chosen], readout, mask, special, normalise)
    return mask_padding(scores, readout, mask)


def score_vit_form(
    attention: Tensor, attention_grad: Tensor, readout: Tensor, mask: Tensor, special: Tensor, normalise: bool
) -> Tensor:
    patches = mask & ~special
    row = multiply_row_by_head(readout, attention)
    row_grad = multiply_row_by_head(readout, attention_grad)
    weight = mean_where(row_grad, patches[:, None])  # batch head 1
    scores = (weight * row).mean(dim=1).relu()
    return scale_min_max(scores, patches) if normalise else scores


def score_bert_form(
    attention: Tensor, attention_grad: Tensor, readout: Tensor, mask: Tensor, special: Tensor, normalise: bool
) -> Tensor:
    real = (mask[:, :, None] & mask[:, None, :]).flatten(1)  # batch query*key
    weight = mean_where(attention_grad.flatten(2), real[:, None])  # batch head 1
    cam = (weight * attention.flatten(2)).mean(dim=1).relu()  # batch query*key
    cam = scale_min_max(cam, real) if normalise else cam
    row = multiply_row(readout, cam.unflatten(1, attention.shape[-2:]))
    return row.masked_fill(find_readout_token(readout), 0)


FORMS = {"vit": score_vit_form, "bert": score_bert_form}


def mean_where(values: Tensor, counts: Tensor) -> Tensor:
    """The mean over the last axis where `counts` is True; 0 if it is nowhere."""
    return values.masked_fill(~counts, 0).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True).clamp(min=1)


def scale_min_max(values: Tensor, counts: Tensor) -> Tensor:
    """Values scaled to [0, 1] over the entries where `counts` is True, the others clipped; all 0 if constant."""
    low = values.masked_fill(~counts, torch.inf).amin(dim=-1, keepdim=True)
    high = values.masked_fill(~counts, -torch.inf).amax(dim=-1, keepdim=True)
    flat = ~(high > low)
    return ((values - low) / (high - low).masked_fill(flat, 1)).masked_fill(flat, 0).clamp(0, 1)
