r"""Value zeroing: a token's value is taken away in one layer, and what changes there is what it gave.

$$ s = r\,\hat C_L \cdots \hat C_2 \hat C_1, \qquad
   (C_l)_{ij} = 1 - \cos\big(x^{l}_i,\; x^{l}_i[v_j \leftarrow 0]\big) $$

with $x^l_i$ what leaves block $l$ at token $i$, $v_j$ the values of token $j$ in all heads of that block, and rows of
$C_l$ scaled to sum to 1.
Mohebbi, Zuidema, Chrupala & Alishahi, Quantifying Context Mixing in Transformers, EACL 2023. arXiv:2301.12971

Rows of different layers are multiplied as in attention rollout, without adding $I$: the token itself is among the $j$.
The block is computed anew with all that follows, and whatever it does after attention is included. The paper scores
tokens in a sentence that way; that the row of the answer explains the answer is our use of it.
"""

import torch
from torch import Tensor

from whyformer._engine.intervene import Intervention
from whyformer._engine.probe import Probe, read_hidden_states
from whyformer.methods._contributions import normalise_rows
from whyformer.methods._readout_row import finish_scores, multiply_row
from whyformer.methods._registry import method


@method(
    paper="Mohebbi et al., EACL 2023", class_specific=False, signed=False, cost="one forward for each token and layer"
)
def value_zeroing(probe: Probe, readout: Tensor, mask: Tensor) -> Tensor:
    """How much of each token reaches the answer, by what changes in each layer when its value is taken away there."""
    clean = read_clean_states(probe)
    of, tokens = mask.cpu().nonzero(as_tuple=True)
    row = readout
    for layer in reversed(range(len(clean) - 1)):
        row = multiply_row(row, normalise_rows(measure_zeroing(probe, layer, of, tokens, clean[layer + 1]), mask))
    return finish_scores(row, readout, mask)


def read_clean_states(probe: Probe) -> list[Tensor]:
    """The hidden states at every boundary, [batch token channel]."""
    _, seen = probe.intervene(lambda _: Intervention(), torch.arange(probe.batch), look=read_hidden_states)
    return [torch.cat(parts) for parts in zip(*seen, strict=True)]


def measure_zeroing(probe: Probe, layer: int, of: Tensor, tokens: Tensor, clean: Tensor) -> Tensor:
    """[batch query key]: how much each token changes when the value of another is taken away."""

    def without(rows: Tensor) -> Intervention:
        def zeroed(site: int, value: Tensor) -> Tensor | None:
            if site != layer:
                return None
            gone = value.clone()
            gone[torch.arange(len(rows)), :, tokens[rows].to(value.device)] = 0
            return gone

        return Intervention(value=zeroed)

    _, seen = probe.intervene(without, of, look=lambda run: read_hidden_states(run)[layer + 1])
    moved = torch.cat(seen)  # row query channel
    found = moved.new_zeros(probe.batch, clean.size(1), clean.size(1), dtype=torch.float64)
    found[of, :, tokens] = cosine_distance(moved.double(), clean.double()[of.to(clean.device)])
    return found


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos, as half the squared distance of the directions: two that are nearly the same keep their digits."""
    a, b = (t / t.norm(dim=-1, keepdim=True).clamp(min=1e-300) for t in (a, b))
    return (a - b).square().sum(-1) / 2
