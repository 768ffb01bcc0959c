r"""LeGrad: sensitivity of each layer to its attention.

$$ s = \sum_l \mathbb{E}_{h, q}\left[\Bigl(\frac{\partial s^l}{\partial A_l^h[q, \cdot]}\Bigr)^+\right] $$

with $s^l$ the layer's *own* score: what the final norm, the pooling and the head of the model read from the output of
layer $l$. It depends on the attention of layer $l$ only through the rows $q$ of the tokens that are pooled. Bousselham,
Boggust, Chaybouti, Strobelt & Kuehne, LeGrad: An Explainability Method for Vision Transformers via Feature Formation
Sensitivity, ICCV 2025, section 3. arXiv:2404.03214

The default, `preset="paper"`, reads a layer as the model reads its last one (CLS, the mean, the last token) and sums
over all layers. The released code, `preset="released"`, differs in three ways: it reads the *mean over all tokens*, CLS
included, also where the model was trained to read CLS; the score is the target's logit divided by the length of all
logits (for CLIP, for which it was written, the cosine of image and text); and it uses the last two layers (`start=-2`).
It then scales the map to [0, 1], which we leave to the display. We chose the paper's form because the mean over tokens
is no input that the head of a model with CLS knows.

`preset="output"` is our variant, the gradient of the explained output itself, which includes the influence of a layer
on later ones and works where the states between blocks are not known; rows are weighted by the readout. Where attention
is impossible (exactly 0 in all heads: a causal mask) the gradient counts as 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings, resolve_layer

PRESETS = {"paper": {"start": 0}, "released": {"start": -2}, "output": {"start": 0}}
PRESET_NEEDS = {"preset": ("mean_attention_grad", "attention_grad")}


@method(paper="Bousselham et al., ICCV 2025", class_specific=True, signed=False, extra_needs=PRESET_NEEDS)
@check_method_settings(preset=allow_choice(tuple(PRESETS)))
def legrad(
    attention: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    layer_attention_grad: Sequence[Tensor],
    mean_attention_grad: Sequence[Tensor] | None = None,
    attention_grad: Sequence[Tensor] | None = None,
    *,
    preset: str = "paper",
    start: int | None = None,
) -> Tensor:
    """How much more attention to each token would raise the explained output as read from each layer.

    preset: "paper", "released" or "output" (the gradient of the model's own output); `start` overrides the preset.
    start: the first layer, counted from the input, that is included.
    """
    gradients = {"paper": layer_attention_grad, "released": mean_attention_grad, "output": attention_grad}[preset]
    assert gradients is not None
    rows = readout if preset == "output" else mask.to(readout) / mask.sum(dim=1, keepdim=True)
    scores = torch.zeros_like(readout)
    for layer in range(find_first_layer(preset, start, len(attention)), len(attention)):
        shut = (attention[layer] == 0).all(dim=1, keepdim=True)  # a single head may underflow to 0
        raises = gradients[layer].masked_fill(shut, 0).clamp(min=0)
        scores = scores + multiply_row(rows, raises.mean(dim=1))
    return mask_padding(scores, readout, mask)


def find_first_layer(preset: str, start: int | None, layers: int) -> int:
    """The first layer that counts; a preset that asks for more layers than there are takes all."""
    if start is not None:
        return resolve_layer("start", start, layers)
    return max(PRESETS[preset]["start"], -layers) % layers
