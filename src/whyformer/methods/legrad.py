r"""LeGrad: sensitivity of each layer to its attention.

$$ s = \sum_l \mathbb{E}_{h,q}\left[(\nabla A_l^h[q, \cdot])^+\right] $$

the mean over heads $h$ and queries $q$. Bousselham, Boggust, Chaybouti, Strobelt & Kuehne, LeGrad: An Explainability
Method for Vision Transformers via Feature Formation Sensitivity, ICCV 2025, section 3. arXiv:2404.03214

In the paper the gradient at layer $l$ is that of the layer's *own* score: the mean of the tokens that leave the layer,
put through the norm and the head of the model. Here it is the gradient of the explained output itself, which one
backward pass gives for all layers at once, for every target, and whatever stands behind the last block; the influence
of a layer on later ones is part of it. For the last layer of a model that reads the mean of its tokens the two are the
same, up to the order of norm and mean. The released code takes the last two layers by default, `layers=[-2, -1]` here,
and scales the map to between 0 and 1. Attention that cannot be paid (exactly 0: a causal mask) counts as gradient 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer.method import method
from whyformer.methods.rows import finish, read


@method(paper="Bousselham et al., ICCV 2025", class_specific=True, signed=False)
def legrad(attention: Sequence[Tensor], attention_grad: Sequence[Tensor], readout: Tensor, mask: Tensor) -> Tensor:
    """How much more attention to each token, wherever it is paid, would raise the explained output."""
    rows = mask.to(readout.dtype) / mask.sum(dim=-1, keepdim=True)  # every real query counts the same
    scores = torch.zeros_like(readout)
    for layer in range(len(attention)):
        raises = attention_grad[layer].masked_fill(attention[layer] == 0, 0).clamp(min=0)
        scores = scores + read(rows, raises.mean(dim=1))
    return finish(scores, readout, mask)
