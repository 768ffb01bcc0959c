r"""Value zeroing: how much a block's output changes when a token's value vectors are set to 0.

$$ s = r\,\hat C_L \cdots \hat C_2 \hat C_1, \qquad
   (C_l)_{ij} = 1 - \cos\big(x^{l}_i,\; x^{l}_i[v_j \leftarrow 0]\big) $$

with $x^l_i$ the output of block $l$ at token $i$, $v_j$ the values of token $j$ in all heads of that block, and rows of
$C_l$ scaled to sum to 1.
Mohebbi, Zuidema, Chrupala & Alishahi, Quantifying Context Mixing in Transformers, EACL 2023. arXiv:2301.12971

Matrices of the layers are multiplied as in attention rollout, without adding $I$: the token itself is one of the $j$.
The whole block is computed again, so everything it does after attention is included. The paper scores tokens in a
sentence this way; using the row of the readout to explain the answer is our choice.
"""

import torch
from torch import Tensor

from whyformer._engine import Intervention, Probe, read_hidden_states
from whyformer.methods._contributions import normalise_rows
from whyformer.methods._readout_row import mask_padding, multiply_row
from whyformer.methods._registry import method


@method(
    paper="Mohebbi et al., EACL 2023",
    class_specific=False,
    signed=False,
    cost="one forward per token and layer",
    reads_attention=True,
)
def value_zeroing(probe: Probe, readout: Tensor, mask: Tensor) -> Tensor:
    """How much of each token reaches the answer, by the change in each layer when its value vectors are set to 0."""
    clean = read_clean_states(probe)
    of, tokens = mask.cpu().nonzero(as_tuple=True)
    row = readout
    for layer in reversed(range(len(clean) - 1)):
        row = multiply_row(row, normalise_rows(measure_zeroing(probe, layer, of, tokens, clean[layer + 1]), mask))
    return mask_padding(row, readout, mask)


def read_clean_states(probe: Probe) -> list[Tensor]:
    """The hidden states at every boundary, [batch token channel]."""
    _, seen = probe.intervene(lambda _: Intervention(), torch.arange(probe.batch), look=read_hidden_states)
    return [torch.cat(parts) for parts in zip(*seen, strict=True)]


def measure_zeroing(probe: Probe, layer: int, of: Tensor, tokens: Tensor, clean: Tensor) -> Tensor:
    """[batch query key]: how much each query's state changes when the value of a key is set to 0."""

    def zero_tokens(rows: Tensor) -> Intervention:
        def zero_value(site: int, value: Tensor) -> Tensor | None:
            if site != layer:
                return None
            zeroed = value.clone()
            zeroed[torch.arange(len(rows)), :, tokens[rows].to(value.device)] = 0
            return zeroed

        return Intervention(value=zero_value)

    _, seen = probe.intervene(zero_tokens, of, look=lambda run: read_hidden_states(run)[layer + 1])
    changed = torch.cat(seen)  # row query channel
    distances = changed.new_zeros(probe.batch, clean.size(1), clean.size(1), dtype=torch.float64)
    distances[of, :, tokens] = cosine_distance(changed.double(), clean.double()[of.to(clean.device)])
    return distances


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos, as half the squared distance of the unit vectors: keeps its digits when directions are nearly equal."""
    a, b = (t / t.norm(dim=-1, keepdim=True).clamp(min=1e-300) for t in (a, b))
    return (a - b).square().sum(-1) / 2
