r"""CP-LRP: conservative propagation, gradient times input with attention and norms held constant.

$$ s_j = \sum_c x_{jc}\,\frac{\partial \tilde y}{\partial x_{jc}}, \qquad
   \tilde y:\; O = [A]\,V, \quad \mathrm{LN}(x) = \frac{x - \mathbb{E}[x]}{[\sqrt{\epsilon + \mathrm{Var}[x]}]} $$

where a bracket is a constant of the backward pass.
Ali, Schnake, Eberle, Montavon, Mueller & Wolf, XAI for Transformers: Better Explanations through Conservative
Propagation, ICML 2022, section 4. arXiv:2202.07304

The logit itself is sent back. All that comes to attention times values goes to the values; queries and keys get
nothing. The paper has no rule for activations, so they keep their true gradient, which does not conserve: GELU and SiLU
give away or make up $f(x) - x f'(x)$, which the books call curvature. With ReLU the sum is exact up to biases. Gates
of gated layers (SwiGLU) are not in the paper; we hold them, as the code of AttnLRP does in its CP variant.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Ali et al., ICML 2022", class_specific=True, signed=True, recipe="cp_lrp")
def cp_lrp(input_relevance: Tensor) -> Tensor:
    """Which part of the explained logit each token or pixel accounts for, if attention had stayed where it is."""
    return input_relevance.sum(dim=-1)
