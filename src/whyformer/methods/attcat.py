r"""AttCAT: attentive class activation tokens, and CAT, the same without attention.

$$ \mathrm{CAT}_l[j] = \sum_c \frac{\partial y}{\partial h_l[j,c]}\,h_l[j,c], \qquad
   \mathrm{AttCAT}[j] = \sum_l \bar a_l[j]\,\mathrm{CAT}_l[j] $$

with $h_l$ the hidden states at layer $l$ and $\bar a_l[j]$ the attention that token $j$ receives there, averaged over
heads and queries. CAT is $\sum_l \mathrm{CAT}_l[j]$.
Qiang, Pan, Li, Li, Jang & Zhu, AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022.

The paper writes $\mathbb{E}_H(\alpha^l \cdot \mathrm{CAT}^l)$ and leaves open how the matrix multiplies the vector. The
mean over queries is the released code and our default (without padded queries); `attention_as="cls_row"` takes the row
of the readout, "matrix_vector" the product $A\,\mathrm{CAT}$, what each token gathers. The paper counts
$l = 1 \ldots L$, the code uses what *enters* each block; `at="output"` uses what leaves it.

The paper has one sequence. Of an encoder and a decoder the sum is over all attentions, $h_l$ being the states that one
reads (what enters the block; for cross-attention what the encoder returns) and the mean that over its own queries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._boundary import refuse_two_streams
from whyformer.methods._readout_row import multiply_column, multiply_row
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings

STATE_OFFSETS = {"input": 0, "output": 1}  # block l uses hidden[l + offset]
ATTENTION_AS = {
    "column_mean": lambda mixing, tokens, readout, mask: (
        multiply_row(mask, mixing) / mask.sum(-1, keepdim=True) * tokens
    ),
    "cls_row": lambda mixing, tokens, readout, mask: multiply_row(readout, mixing) * tokens,
    "matrix_vector": lambda mixing, tokens, readout, mask: multiply_column(mixing, tokens),
}


@method(paper="Qiang et al., NeurIPS 2022", class_specific=True, signed=True)
@check_method_settings(at=allow_choice(tuple(STATE_OFFSETS)))
def cat(
    hidden: Sequence[Tensor], hidden_grad: Sequence[Tensor], streams: Sequence[int], mask: Tensor, *, at: str = "input"
) -> Tensor:
    """Gradient times hidden state of each token, summed over layers; negative scores are evidence against the target.

    at: hidden states at the "input" or the "output" of each block.
    """
    refuse_two_streams(streams, "cat")
    shift = STATE_OFFSETS[at]
    scores = torch.zeros_like(mask, dtype=torch.float32)
    for layer in range(len(hidden) - 1):
        scores = scores + class_activation(hidden[layer + shift], hidden_grad[layer + shift])
    return scores.masked_fill(~mask, 0)


@method(paper="Qiang et al., NeurIPS 2022", class_specific=True, signed=True)
@check_method_settings(attention_as=allow_choice(tuple(ATTENTION_AS)), at=allow_choice(tuple(STATE_OFFSETS)))
def attcat(
    attention: Sequence[Tensor],
    hidden: Sequence[Tensor],
    hidden_grad: Sequence[Tensor],
    streams: Sequence[int],
    readout: Tensor,
    mask: Tensor,
    *,
    attention_as: str = "column_mean",
    at: str = "input",
) -> Tensor:
    """Gradient times hidden state of each token, weighted by the attention it gets, summed over layers; signed.

    attention_as: "column_mean" (attention a token receives), "cls_row" (attention it receives from the readout) or
    "matrix_vector" (each token gathers the activations of those it attends to).
    at: hidden states at the "input" or the "output" of each block.
    """
    if at == "output":
        refuse_two_streams(streams, 'attcat with at="output"')
    shift = STATE_OFFSETS[at]
    scores = torch.zeros_like(mask, dtype=torch.float32)
    for layer in range(len(attention)):
        mixing = attention[layer].mean(dim=1)  # batch query key
        queries = mask & (mixing != 0).any(-1) if streams else mask
        tokens = class_activation(hidden[layer + shift], hidden_grad[layer + shift]).masked_fill(~mask, 0)
        scores = scores + ATTENTION_AS[attention_as](mixing, tokens, readout, queries)
    return scores.masked_fill(~mask, 0)


def class_activation(hidden: Tensor, hidden_grad: Tensor) -> Tensor:
    """CAT of each token at one layer."""
    return (hidden * hidden_grad).sum(dim=-1)
