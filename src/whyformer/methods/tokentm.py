r"""TokenTM: attention weighted by how each token is transformed.

$$ s = r\,U_L \cdots U_2 U_1\,\mathrm{diag}(\lVert e^0 \rVert), \qquad
   U_l = (I + W_l^{\mathrm{mlp}})\,\big(I + \mathbb{E}_h[(\nabla A_l^h \odot A_l^h)^+]\,W_l^{\mathrm{att}}\big), \qquad
   W = \mathrm{diag}\Big(\frac{\lVert \tilde e_j \rVert}{\lVert e_j \rVert} \cdot
       \frac{\exp\cos(e_j, \tilde e_j)}{\frac1N \sum_k \exp\cos(e_k, \tilde e_k)}\Big) $$

with $e_j$ a token before and $\tilde e_j$ after a transformation: by values and output projection of all heads in
attention, by the MLP in the second half of a block; $e^0$ is the input of the first block.
Wu, Duan, Kang, Tang & Yan, Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer,
CVPR 2024. arXiv:2403.14552

No public code of the authors was found, so there is no released form and no golden numbers, and we could not check the
formulas against the text of the paper. Its abstract and reviews give the measure (change of length times correlation of
direction, an exponential of the cosine normalised over tokens), the start from the lengths of the first tokens, and an
aggregation over attention and MLP with skip connections. Our reading: the exponential is normalised by the mean over
tokens (so that the factor is 1 on average), heads are transformed together, and attention is weighted by its gradient
as in generic_attention. In post-norm models $e$ is the normalised state.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method


@method(paper="Wu et al., CVPR 2024", class_specific=True, signed=False)
def tokentm(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    projected: Sequence[Tensor],
    residual: Sequence[Tensor],
    middle: Sequence[Tensor],
    update: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
) -> Tensor:
    """How much each token supports the target, by attention and by how well transformations preserve the token."""
    row, entered = readout, readout
    for layer in reversed(range(len(attention))):
        entered = residual[layer]
        row = row.to(entered.dtype) * (1 + measure_transformation(middle[layer], update[layer], mask))
        mixing = (attention_grad[layer] * attention[layer]).clamp(min=0).mean(dim=1)
        row = row + multiply_row(row, mixing) * measure_transformation(entered, projected[layer].sum(dim=1), mask)
    return mask_padding(row * entered.norm(dim=-1), readout, mask)


def measure_transformation(before: Tensor, after: Tensor, mask: Tensor) -> Tensor:
    """[batch token]: change of length under a transformation, times the normalised exponential of the cosine."""
    lengths = [t.norm(dim=-1) for t in (before, after)]
    tiny = before.new_tensor(1e-12)
    cosine = (before * after).sum(-1) / (lengths[0] * lengths[1]).maximum(tiny)
    kept = cosine.exp().masked_fill(~mask, 0)
    return lengths[1] / lengths[0].maximum(tiny) * kept * mask.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True)
