r"""DecompX: hidden states decomposed into one part per input token, propagated through all layers to the logit.

$$ s_k = y_{\leftarrow k}, \qquad x_{i \leftarrow k} \mapsto \begin{cases}
   W x_{i \leftarrow k} + \omega_{ik} b & \text{linear maps} \\
   \sum_j A_{ij}\,v_{j \leftarrow k} & \text{attention, constant} \\
   \gamma\,(x_{i \leftarrow k} - \bar x_{i \leftarrow k}) / \sigma_i + \omega_{ik} \beta & \text{norms, constant} \\
   \frac{f(x_i)}{x_i}\,x_{i \leftarrow k} & \text{activations}
   \end{cases} \qquad \omega_{ik} \propto |b \cdot W x_{i \leftarrow k}| $$

starting from $x^0_{i \leftarrow k} = [i = k]\,x^0_i$ at the input of the first block. The parts sum to the state at
every step, and the scores to the explained logit.
Modarressi, Fayyaz, Aghazadeh, Yaghoobzadeh & Pilehvar, DecompX: Explaining Transformers Decisions by Propagating Token
Decomposition, ACL 2023. arXiv:2306.02873

Implemented in _engine/capture/decompose.py. Without the distribution of biases, this would be gradient times input with
attention, standard deviations and activation slopes held constant (LibraGrad). Biases are split in proportion to
$|\text{bias} \cdot \text{part}|$, which requires the parts themselves: as many times the memory of a forward pass as
there are tokens, so long sequences are refused. For gates, which the paper's models do not have, each factor gets half.

The default is the paper's form (eqs. 3 to 6): value and output biases of an attention are one vector,
$b = W_O b_V + b_O$, split among the parts of the attention output before the residual is added. The released code
differs in two places, which are `preset="released"`: it splits $b$ after the residual is added, among the parts of the
sum; and in the first layer it splits only $b_O$, while the value bias stays with its token, weighted by attention. Its
weights are divided by their sum + 1e-12, ours by their sum. Our numbers agree with it to 1e-9 (tests/golden/authors).
The code was written for BERT and RoBERTa; on other models both forms follow the same rules.
"""

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(
    paper="Modarressi et al., ACL 2023",
    class_specific=True,
    signed=True,
    cost="a forward for each token's parts",
    extra_needs={"preset": ("released_answer_parts",)},
)
@check_method_settings(preset=allow_choice(("paper", "released")))
def decompx(
    answer_parts: Tensor, mask: Tensor, released_answer_parts: Tensor | None = None, *, preset: str = "paper"
) -> Tensor:
    """What each token contributes to the explained output through all layers; the scores sum to that output.

    preset: "paper", or "released" for biases of attention that are shared as in the authors' code (takes twice as
    long, because both are computed).
    """
    parts = answer_parts if released_answer_parts is None else released_answer_parts
    return parts.masked_fill(~mask, 0)
