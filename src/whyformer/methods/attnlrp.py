r"""AttnLRP: relevance with a rule for everything that is not linear in a transformer.

$$ s_j = \sum_c R_{jc}, \qquad
   R_x = x \odot \left(R - y \textstyle\sum R\right) \;\text{at}\; y = \mathrm{softmax}(x), \qquad
   R_{A_{qk}} = \tfrac12 \sum_d A_{qk} V_{kd} \frac{R_{qd}}{O_{qd}} \;\text{at}\; O = AV $$

and the same for V; linear layers and additions share out in proportion, $R_j = \sum_i x_j w_{ji} R_i / z_i$, with the
bias in $z$; activations and the division of a norm pass relevance unchanged.
Achtibat, Hatefi, Dreyer, Jain, Wiegand, Lapuschkin & Samek, AttnLRP: Attention-Aware Layer-Wise Relevance Propagation
for Transformers, ICML 2024, propositions 3.1 to 3.4. arXiv:2402.05602

The logit itself is sent back: the scores, what biases absorbed, and what the expansion of the softmax leaves over, sum
to the explained logit. We carry $R/x$ instead of $R$, as the authors' efficient code does, so that no sum is divided by
and the paper's $\epsilon$ has nothing to do. Half of a gated product (SwiGLU) goes to each factor. The mean of a layer
norm counts as the linear map it is; only its spread is held. Relevance of a picture arrives at pixels, that of a text
at the sum of its embeddings, as in `lrp`. For vision transformers the authors use LRP-gamma in linear layers:
`lrp_gamma`.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Achtibat et al., ICML 2024", class_specific=True, signed=True, recipe="attnlrp")
def attnlrp(input_relevance: Tensor) -> Tensor:
    """Which part of the explained logit each token or pixel accounts for, through values and attention alike."""
    return input_relevance.sum(dim=-1)
