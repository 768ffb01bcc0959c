r"""LRP-gamma: contributions with the sign of the output count more.

$$ s_j = \sum_c R_{jc}, \qquad R_j = \sum_i \frac{c_{ij}}{\sum_k c_{ik}}\,R_i, \qquad
   c_{ij} = x_j w_{ji} + \gamma\,(x_j w_{ji})^{\pm} $$

with + where the output $z_i$ is positive and - where it is negative; the bias is one more input.
Montavon, Binder, Lapuschkin, Samek & Mueller, Layer-Wise Relevance Propagation: An Overview, in: Explainable AI, LNCS
11700, 2019, doi:10.1007/978-3-030-28954-6_10, for positive inputs; we use the generalised form of Andeol et al., 2021,
for inputs of either sign. For transformers: Achtibat et al., AttnLRP, ICML 2024.

Linear layers and the patch convolution follow this rule, everything else follows AttnLRP: that is what the authors of
AttnLRP use for vision transformers, where AttnLRP alone is noisy. $\gamma = 0$ is `attnlrp`; a large $\gamma$ passes
only products with the sign of the output. Propagation starts from the logit itself. The authors tune $\gamma$ per layer
type; here it is one number.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Montavon et al., 2019", class_specific=True, signed=True, recipe="gamma")
def lrp_gamma(input_relevance: Tensor) -> Tensor:
    """The part of the explained logit that each token or pixel accounts for, emphasising contributions of its sign.

    gamma: the extra weight, >= 0; a parameter of the recipe.
    """
    return input_relevance.sum(dim=-1)
