r"""LeGrad: sensitivity of each layer to its attention.

$$ s = \sum_l \sum_q r_q\,\mathbb{E}_h\left[(\nabla A_l^h[q, \cdot])^+\right] $$

with $r_q$ how much of the answer is read at token $q$: for a model that reads the class token, its row; for one that
reads the mean, the mean over rows. Bousselham, Boggust, Chaybouti, Strobelt & Kuehne, LeGrad: An Explainability Method
for Vision Transformers via Feature Formation Sensitivity, ICCV 2025, section 3. arXiv:2404.03214

In the paper the gradient at layer $l$ is that of the layer's *own* score: what is pooled from the tokens that leave the
layer, put through the norm and the head of the model. That score depends on the attention of its layer only through the
pooled tokens, hence the rows. Here it is the gradient of the explained output itself, which one backward pass gives for
all layers at once, for every target, and whatever stands behind the last block; the influence of a layer on later ones
is part of it. The mean over all rows, which the formula of the paper reads like at first sight, would count the rows of
tokens that nobody pools: on the shipped pets model that does worse than chance. The released code takes the last two
layers by default, `layers=[-2, -1]` here, and scales the map to between 0 and 1. Attention that cannot be paid (exactly
0 in all heads: a causal mask) counts as gradient 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method


@method(paper="Bousselham et al., ICCV 2025", class_specific=True, signed=False)
def legrad(attention: Sequence[Tensor], attention_grad: Sequence[Tensor], readout: Tensor, mask: Tensor) -> Tensor:
    """How much more attention to each token, paid where the answer is read, would raise the explained output."""
    scores = torch.zeros_like(readout)
    for layer in range(len(attention)):
        shut = (attention[layer] == 0).all(dim=1, keepdim=True)  # in one head it may be too small for the number format
        raises = attention_grad[layer].masked_fill(shut, 0).clamp(min=0)
        scores = scores + multiply_row(readout, raises.mean(dim=1))
    return finish_scores(scores, readout, mask)
