r"""CP-LRP: conservative propagation, gradient times input with attention and norms held constant.

$$ s_j = \sum_c x_{jc}\,\frac{\partial \tilde y}{\partial x_{jc}}, \qquad
   \tilde y:\; O = [A]\,V, \quad \mathrm{LN}(x) = \frac{x - \mathbb{E}[x]}{[\sqrt{\epsilon + \mathrm{Var}[x]}]} $$

where brackets mark constants of the backward pass.
Ali, Schnake, Eberle, Montavon, Mueller & Wolf, XAI for Transformers: Better Explanations through Conservative
Propagation, ICML 2022, section 4. arXiv:2202.07304

Propagation starts from the logit itself. All relevance at the product of attention and values goes to the values;
queries and keys get none. The paper has no rule for activations, so they keep their true gradient, which does not
conserve relevance: GELU and SiLU lose or add $f(x) - x f'(x)$, listed as curvature in the conservation check. With ReLU
the sum is exact up to biases. Gates of gated layers (SwiGLU) are not in the paper; we hold them constant, as the CP
variant in the code of AttnLRP does.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Ali et al., ICML 2022", class_specific=True, signed=True, recipe="cp_lrp")
def cp_lrp(input_relevance: Tensor) -> Tensor:
    """The part of the explained logit that each token or pixel accounts for, with attention weights held constant."""
    return input_relevance.sum(dim=-1)
