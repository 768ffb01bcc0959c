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

Implemented in _engine/decompose.py. Without the distribution of biases, this would be gradient times input with
attention, standard deviations and activation slopes held constant (LibraGrad). Biases are split in proportion to
$|\text{bias} \cdot \text{part}|$, as in the released code, which requires the parts themselves: as many times the
memory of a forward pass as there are tokens, so long sequences are refused. Where a model computes queries, keys and
values in one linear map, the bias of that map is one vector here. For gates, which the paper's models do not have, each
factor gets half.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Modarressi et al., ACL 2023", class_specific=True, signed=True, cost="a forward for each token's parts")
def decompx(answer_parts: Tensor, mask: Tensor) -> Tensor:
    """What each token contributes to the explained output through all layers; the scores sum to that output."""
    return answer_parts.masked_fill(~mask, 0)
