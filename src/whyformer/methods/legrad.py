r"""LeGrad: sensitivity of each layer to its attention.

$$ s = \sum_l \sum_q r_q\,\mathbb{E}_h\left[(\nabla A_l^h[q, \cdot])^+\right] $$

with $r_q$ how much of the answer is read at token $q$: the row of the class token for a model that reads it, the mean
over rows for a model that pools the mean. Bousselham, Boggust, Chaybouti, Strobelt & Kuehne, LeGrad: An Explainability
Method for Vision Transformers via Feature Formation Sensitivity, ICCV 2025, section 3. arXiv:2404.03214

In the paper the gradient at layer $l$ is that of the layer's *own* score: the pooled output tokens of the layer, put
through the final norm and the head of the model. That score depends on the attention of its layer only through the
pooled tokens, hence the rows. Here it is the gradient of the explained output itself, which one backward pass gives for
all layers at once, for every target and whatever follows the last block; it includes the influence of a layer on later
ones. The mean over all rows, as the formula of the paper could be read, would include rows of tokens that are not
pooled: on the shipped pets model that is worse than chance. The released code uses the last two layers by default,
`layers=[-2, -1]` here, and scales the map to [0, 1]. Where attention is impossible (exactly 0 in all heads: a causal
mask) the gradient counts as 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method


@method(paper="Bousselham et al., ICCV 2025", class_specific=True, signed=False)
def legrad(attention: Sequence[Tensor], attention_grad: Sequence[Tensor], readout: Tensor, mask: Tensor) -> Tensor:
    """How much more attention to each token, where the answer is read, would raise the explained output."""
    scores = torch.zeros_like(readout)
    for layer in range(len(attention)):
        shut = (attention[layer] == 0).all(dim=1, keepdim=True)  # a single head may underflow to 0
        raises = attention_grad[layer].masked_fill(shut, 0).clamp(min=0)
        scores = scores + multiply_row(readout, raises.mean(dim=1))
    return finish_scores(scores, readout, mask)
