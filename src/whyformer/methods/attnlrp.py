r"""AttnLRP: layer-wise relevance propagation with rules for the non-linear operations of a transformer.

$$ s_j = \sum_c R_{jc}, \qquad
   R_x = x \odot \left(R - y \textstyle\sum R\right) \;\text{at}\; y = \mathrm{softmax}(x), \qquad
   R_{A_{qk}} = \tfrac12 \sum_d A_{qk} V_{kd} \frac{R_{qd}}{O_{qd}} \;\text{at}\; O = AV $$

and the same for V; linear layers and additions distribute relevance in proportion,
$R_j = \sum_i x_j w_{ji} R_i / z_i$, with the bias included in $z$; activations and the division of a norm pass
relevance unchanged.
Achtibat, Hatefi, Dreyer, Jain, Wiegand, Lapuschkin & Samek, AttnLRP: Attention-Aware Layer-Wise Relevance Propagation
for Transformers, ICML 2024, propositions 3.1 to 3.4. arXiv:2402.05602

Propagation starts from the logit itself: the scores, the relevance absorbed by biases and the remainder of the softmax
expansion sum to the explained logit. Like the authors' efficient code we propagate $R/x$ instead of $R$, so that no
division by a sum is needed and the paper's $\epsilon$ is not used. Each factor of a gated product (SwiGLU) gets half.
The mean of a layer norm is treated as the linear map it is; only the standard deviation is held constant. Relevance
arrives at the pixels of an image, or at the summed embeddings of a text, as in `lrp`. For vision transformers the
authors use LRP-gamma in linear layers: `lrp_gamma`.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Achtibat et al., ICML 2024", class_specific=True, signed=True, recipe="attnlrp")
def attnlrp(input_relevance: Tensor) -> Tensor:
    """The part of the explained logit that each token or pixel accounts for, through values and attention weights."""
    return input_relevance.sum(dim=-1)
