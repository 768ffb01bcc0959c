r"""AttGrads: attention times its gradient, summed over layers.

$$ s = r \sum_l \mathbb{E}_h\left[\nabla A_l^h \odot A_l^h\right] $$

with $r$ the readout (one-hot at CLS: the CLS row). A baseline of Qiang, Pan, Li, Li, Jang & Zhu, AttCAT: Explaining
Transformers via Attentive Class Activation Tokens, NeurIPS 2022, figure 1.

The figure shows the sum of matrices without selecting a row; as for the other attention baselines of the paper, we take
the row of the readout. Negative values are kept, so scores are signed. The released code never computes this: in its
place it has Grad-CAM of the last block. `preset="released"` is that, the scores of `grad_cam(form="bert",
normalise=True)`, which are never negative.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import Setting, method
from whyformer.methods._settings import apply_preset, check_method_settings, resolve_layer
from whyformer.methods.grad_cam import score_bert_form

PRESETS: dict[str, dict[str, Setting]] = {
    "paper": {"start": 0, "form": "product"},
    "released": {"start": -1, "form": "grad_cam"},
}


@method(paper="Qiang et al., NeurIPS 2022", class_specific=True, signed=True)
@check_method_settings(preset=allow_choice(tuple(PRESETS)), form=allow_choice((None, "product", "grad_cam")))
def attgrads(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    special: Tensor,
    *,
    preset: str = "paper",
    start: int | None = None,
    form: str | None = None,
    own: str = "keep",
) -> Tensor:
    """Attention from the readout to each token times its gradient; negative scores are evidence against the target.

    preset: "paper" (the product, all layers) or "released" (Grad-CAM of the last layer); explicit settings override it.
    start: the first layer, counted from the input, that is included.
    form: "product" of attention and gradient, or "grad_cam" (attention times the mean gradient of its head, clipped).
    own: "keep", "zero" or "min", the score of the readout token.
    """
    chosen = apply_preset(PRESETS, preset, start=start, form=form)
    scores = torch.zeros_like(readout)
    for layer in range(resolve_layer("start", chosen["start"], len(attention)), len(attention)):
        if chosen["form"] == "grad_cam":
            row = score_bert_form(attention[layer], attention_grad[layer], readout, mask, special, normalise=True)
        else:
            row = multiply_row(readout, (attention_grad[layer] * attention[layer]).mean(dim=1))
        scores = scores + row
    return mask_padding(scores, readout, mask, own)
