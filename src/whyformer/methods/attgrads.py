r"""AttGrads: attention times its gradient, summed over layers.

$$ s = r \sum_l \mathbb{E}_h\left[\nabla A_l^h \odot A_l^h\right] $$

with $r$ the readout (one-hot at CLS: the CLS row). A baseline of Qiang, Pan, Li, Li, Jang & Zhu, AttCAT: Explaining
Transformers via Attentive Class Activation Tokens, NeurIPS 2022, figure 1.

The figure shows the sum of matrices without selecting a row; as for the other attention baselines of the paper, we take
the row of the readout. Negative values are kept, so scores are signed. The released code uses the last block alone
(`preset="released"`), in the form of Grad-CAM, which is `grad_cam(form="bert")` here.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice, allow_layer
from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_own, apply_preset, check_method_settings, resolve_layer

PRESETS: dict[str, dict[str, Any]] = {"paper": {"start": 0}, "released": {"start": -1}}


@method(paper="Qiang et al., NeurIPS 2022", class_specific=True, signed=True)
@check_method_settings(preset=allow_choice(tuple(PRESETS)), start=allow_layer, own=allow_own)
def attgrads(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    preset: str = "paper",
    start: int | None = None,
    own: str = "keep",
) -> Tensor:
    """Attention from the readout to each token times its gradient; negative scores are evidence against the target.

    preset: "paper" (all layers) or "released" (the last layer alone).
    start: the first layer, counted from the input, that is included; overrides the preset.
    own: "keep", "zero" or "min", the score of the readout token.
    """
    first = resolve_layer("start", apply_preset(PRESETS, preset, start=start)["start"], len(attention))
    scores = torch.zeros_like(readout)
    for layer in range(first, len(attention)):
        scores = scores + multiply_row(readout, (attention_grad[layer] * attention[layer]).mean(dim=1))
    return finish_scores(scores, readout, mask, own)
