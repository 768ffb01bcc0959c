r"""LRP-gamma: what agrees in sign with an output counts more.

$$ s_j = \sum_c R_{jc}, \qquad R_j = \sum_i \frac{c_{ij}}{\sum_k c_{ik}}\,R_i, \qquad
   c_{ij} = x_j w_{ji} + \gamma\,(x_j w_{ji})^{\pm} $$

with + where the output $z_i$ is positive and - where it is negative; the bias is one more input.
Montavon, Binder, Lapuschkin, Samek & Mueller, Layer-Wise Relevance Propagation: An Overview, in: Explainable AI, LNCS
11700, 2019, doi:10.1007/978-3-030-28954-6_10, for positive inputs; for inputs of either sign the generalised form of
Andeol et al., 2021, which is the one here. For transformers: Achtibat et al., AttnLRP, ICML 2024.

Linear layers and the patch convolution follow this rule, everything else AttnLRP: that is what its authors use for
vision transformers, where AttnLRP alone is noisy. $\gamma = 0$ is `attnlrp`; a large $\gamma$ lets only products of the
sign of the output pass. The logit itself is sent back. The authors choose $\gamma$ per kind of layer by hand; here it
is one number.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Montavon et al., 2019", class_specific=True, signed=True, recipe="gamma")
def lrp_gamma(input_relevance: Tensor) -> Tensor:
    """Which part of the explained logit each token or pixel accounts for, where agreement counts more.

    gamma: how much more, from 0 on; a parameter of the recipe.
    """
    return input_relevance.sum(dim=-1)
