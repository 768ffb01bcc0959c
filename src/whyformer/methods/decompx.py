r"""DecompX: every token's part of every state, carried through all layers to the logit.

$$ s_k = y_{\leftarrow k}, \qquad x_{i \leftarrow k} \mapsto \begin{cases}
   W x_{i \leftarrow k} + \omega_{ik} b & \text{linear maps} \\
   \sum_j A_{ij}\,v_{j \leftarrow k} & \text{attention, held} \\
   \gamma\,(x_{i \leftarrow k} - \bar x_{i \leftarrow k}) / \sigma_i + \omega_{ik} \beta & \text{norms, held} \\
   \frac{f(x_i)}{x_i}\,x_{i \leftarrow k} & \text{activations}
   \end{cases} \qquad \omega_{ik} \propto |b \cdot W x_{i \leftarrow k}| $$

from $x^0_{i \leftarrow k} = [i = k]\,x^0_i$ at what enters the first block; parts add up to the state at every step,
and the scores to the explained logit.
Modarressi, Fayyaz, Aghazadeh, Yaghoobzadeh & Pilehvar, DecompX: Explaining Transformers Decisions by Propagating Token
Decomposition, ACL 2023. arXiv:2306.02873

The engine does it in parts.py. Without the shares of biases it would be gradient times input with attention, deviations
and slopes held (LibraGrad); the shares $\omega$, by absolute dot product as we know the released code, set it apart and
need the parts themselves: tokens times the memory of a forward, so long sequences are refused. Where a model computes
queries, keys and values in one map, that map's bias is one vector here. Gates, which the paper's models do not have,
give each factor half.
"""

from torch import Tensor

from whyformer.methods._registry import method


@method(paper="Modarressi et al., ACL 2023", class_specific=True, signed=True, cost="a forward for each token's parts")
def decompx(answer_parts: Tensor, mask: Tensor) -> Tensor:
    """What each token brought into the explained output through all layers; all together they are that output."""
    return answer_parts.masked_fill(~mask, 0)
