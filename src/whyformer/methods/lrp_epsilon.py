r"""LRP-epsilon: relevance is distributed in proportion to the summands; epsilon absorbs what rests on small sums.

$$ s_j = \sum_c R_{jc}, \qquad
   R_j = \sum_i \frac{x_j w_{ji}}{z_i + \epsilon\,\mathrm{sign}(z_i)}\,R_i, \qquad z_i = \sum_k x_k w_{ki} + b_i $$

Bach, Binder, Montavon, Klauschen, Mueller & Samek, On Pixel-wise Explanations for Non-Linear Classifier Decisions by
Layer-Wise Relevance Propagation, PLoS ONE 10(7), 2015, doi:10.1371/journal.pone.0130140, eq. 58.

The rule applies to linear layers, the patch convolution, additions, pooling and products (attention times values,
queries times keys: half to each factor). Softmax and layer norms, which Bach et al. did not have, pass relevance on
entry by entry, like activations: this is LRP before AttnLRP introduced rules for them, and what `lrp` does too, with
different linear layers. Relevance is 1 at the explained logit. Where summands cancel, shares are large and of both
signs; $\epsilon$ bounds them by absorbing relevance, which the conservation check shows. The usual $10^{-6}$ only
prevents division by 0; after layer norms, where sums are of order 1, the scores of a transformer would then be
dominated by the few sums that nearly cancel. Our default is 0.1.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Bach et al., PLoS ONE 2015", class_specific=True, signed=True, recipe="epsilon")
def lrp_epsilon(input_relevance: Tensor) -> Tensor:
    """The share of the explained output that each token or pixel accounts for, from positive and negative summands.

    epsilon: how much is added to every sum, which absorbs relevance; a parameter of the recipe.
    """
    return input_relevance.sum(dim=-1)
