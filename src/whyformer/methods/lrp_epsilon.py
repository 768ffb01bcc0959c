r"""LRP-epsilon: every sum shares out relevance in proportion, and epsilon takes what rests on little.

$$ s_j = \sum_c R_{jc}, \qquad
   R_j = \sum_i \frac{x_j w_{ji}}{z_i + \epsilon\,\mathrm{sign}(z_i)}\,R_i, \qquad z_i = \sum_k x_k w_{ki} + b_i $$

Bach, Binder, Montavon, Klauschen, Mueller & Samek, On Pixel-wise Explanations for Non-Linear Classifier Decisions by
Layer-Wise Relevance Propagation, PLoS ONE 10(7), 2015, doi:10.1371/journal.pone.0130140, eq. 58.

The rule holds for linear layers, the patch convolution, additions, pooling and products (attention times values,
queries times keys: half to each factor). What Bach et al. could not know of, softmax and layer norms, passes relevance
on entry by entry, as activations do: that is LRP as it was before AttnLRP gave those a rule, and what `lrp` does too,
whose linear layers differ. Relevance is 1 at the explained logit. Where addends cancel, shares are large and of both
signs; $\epsilon$ bounds them by taking relevance away, which the books show. The usual $10^{-6}$ keeps the division
finite and no more; behind layer norms, where sums are of size 1, it leaves a transformer's scores to the few sums that
nearly cancel. Ours is 0.1.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Bach et al., PLoS ONE 2015", class_specific=True, signed=True, recipe="epsilon")
def lrp_epsilon(input_relevance: Tensor) -> Tensor:
    """Which share of the explained output each token or pixel accounts for, positive and negative parts alike.

    epsilon: how much of every sum is left to nobody; a parameter of the recipe.
    """
    return input_relevance.sum(dim=-1)
