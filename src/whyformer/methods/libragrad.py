r"""LibraGrad: gradients pruned and scaled so that they account for the whole output, summed over all blocks.

$$ s_j = \sum_{l=0}^{L-1} \sum_c h_{l,jc}\,\frac{\partial \tilde y}{\partial h_{l,jc}}, \qquad
   \tilde y:\; [A]\,V, \quad \frac{x - \mu}{[\sigma]}, \quad x \odot [g(x)], \quad \tfrac12 (f_1 \odot f_2) $$

with $h_l$ the input of block $l$, brackets constants of the backward pass, $x \odot g(x)$ an activation and
$f_1 \odot f_2$ a gated layer, whose gradient is halved.
Mehri, Baghshah & Pilehvar, LibraGrad: Balancing Gradient Flow for Universally Better Vision Transformer Attributions,
CVPR 2025. arXiv:2411.16760

LibraGrad corrects the backward pass for any gradient method. The paper recommends it with FullGrad+, which is the
method registered here: input times gradient of every block, summed. We leave out the bias terms, as the authors do in
one of their evaluations (their ablation finds them worth 0.2 to 0.4 %). `at="input"` is their "Libra Input x Grad", the
first term alone. Its sum plus the relevance absorbed by biases is the explained logit; this holds at every block, so
the sum over blocks is about $L$ times the logit.

A sum over blocks takes the state at a place for the token at that place. Blocks that mix tokens without attention
(recurrent, state space, linear attention, convolution; also beside attention) carry tokens far from their place, in the
first block already: their sum gives most of a deciding token's relevance to the places that it was carried to. Where
the engine finds such blocks, the default is the first term alone, and a note says so.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


def note_blocks_left_out(
    hidden_relevance: Sequence[Tensor], unattended: Sequence[bool], mask: Tensor, *, at: str | None = None
) -> str:
    if hidden_relevance[0].dim() == 4:
        return "The model has no blocks of tokens. So the relevance of the pixels is the score."
    if not any(unattended):
        return ""
    found = f"{sum(unattended)} of {len(unattended)} blocks mix tokens without attention (a recurrence, a convolution)"
    if at == "blocks":
        return f'{found}, so states between blocks do not belong to one token each. at="input" scores the tokens.'
    loss = " Less than half of it arrives there: gates and biases take the rest. Compare with leave_one_out."
    return (
        f'{found}. So the relevance of the input of the first block is the score, as with at="input", not the sum over '
        f"blocks.{loss if loses_relevance(hidden_relevance) else ''}"
    )


def loses_relevance(hidden_relevance: Sequence[Tensor]) -> bool:
    """Whether less than half of the relevance that enters the last block from above arrives below the first."""
    arrived, sent = (hidden_relevance[block].flatten(1).sum(1) for block in (0, -1))
    return bool((arrived.abs() < sent.abs() / 2).any())


@method(paper="Mehri et al., CVPR 2025", class_specific=True, signed=True, recipe="libra", note=note_blocks_left_out)
@check_method_settings(at=allow_choice(("blocks", "input")))
def libragrad(
    hidden_relevance: Sequence[Tensor], unattended: Sequence[bool], mask: Tensor, *, at: str | None = None
) -> Tensor:
    """The part of the explained logit that each token accounts for, summed over the inputs of all blocks.

    at: "blocks", the sum over the inputs of all blocks, or "input", the input of the first block alone. By default
    "blocks"; "input" for models with blocks that mix tokens without attention.
    """
    if hidden_relevance[0].dim() == 4:  # [batch height width channel], of a convolutional network
        return hidden_relevance[0].sum(dim=-1)
    is_sum = at == "blocks" or (at is None and not any(unattended))
    blocks = len(hidden_relevance) - 1 if is_sum else 1
    scores = hidden_relevance[0].sum(dim=-1)
    for block in range(1, blocks):
        scores = scores + hidden_relevance[block].sum(dim=-1)
    return scores.masked_fill(~mask, 0)
