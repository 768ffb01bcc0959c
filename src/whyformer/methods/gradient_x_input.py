r"""Gradient times input.

$$ s_j = \sum_c x_{jc}\,\frac{\partial y}{\partial x_{jc}} $$

Shrikumar, Greenside, Shcherbina & Kundaje, Not Just a Black Box: Learning Important Features Through Propagating
Activation Differences, 2016. arXiv:1605.01713

For a text, $x$ is the embedding of the token id and $c$ runs over its channels; for an image, $x$ is the normalised
image and $c$ runs over colours. Where a norm follows this embedding and nothing is added to it before (ModernBERT,
BLOOM), the scale of $x_j$ does not matter and $s_j$ is 0 up to rounding, whatever the token does: a note says so; use
`at=0`. If `at` is a number, $x$ are hidden states: 0 is the input of the first block (word
plus position embeddings, after a norm where the model has one), -1 the output of the last. The sum over the inputs of
all blocks is `cat`.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from torch import Tensor

from whyformer.methods._boundary import refuse_two_streams, states_at
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_boundary, check_method_settings

ORTHOGONAL = 0.05  # of the cosine of two random directions: next to norms we measured 0.02 and less, elsewhere 0.14 on


def note_cancelling_scores(input: Tensor, input_grad: Tensor, *rest: Any, at: str | int) -> str:
    """A note if a norm makes the scores of all tokens cancel; for pixels there is none."""
    if at != "input" or input.dim() != 3:
        return ""
    lengths = input.norm(dim=-1) * input_grad.norm(dim=-1)
    felt = lengths > 0
    if not bool(felt.any()):
        return ""
    cosines = (input * input_grad).sum(dim=-1).abs() / lengths.masked_fill(~felt, 1)
    if bool(cosines.sum() / felt.sum() * sqrt(input.size(-1)) > ORTHOGONAL):
        return ""
    return (
        "gradient_x_input is close to 0 for every token here: a norm follows the embeddings and removes their scale. "
        "Pass at=0 to score the input of the first block, after that norm."
    )


@method(
    paper="Shrikumar et al., 2016",
    class_specific=True,
    signed=True,
    note=note_cancelling_scores,
    extra_needs={"at": ("hidden", "hidden_grad", "mask", "streams")},
)
@check_method_settings(at=allow_boundary)
def gradient_x_input(
    input: Tensor,
    input_grad: Tensor,
    hidden: Sequence[Tensor] | None = None,
    hidden_grad: Sequence[Tensor] | None = None,
    mask: Tensor | None = None,
    streams: Sequence[int] = (),
    *,
    at: str | int = "input",
) -> Tensor:
    """How the explained output changes when each token or pixel is scaled; negative: evidence against the target.

    at: "input", or a block number for the hidden states that enter it; negative counts from the output.
    """
    if hidden is None or hidden_grad is None or mask is None:
        return (input * input_grad).sum(dim=-1)
    refuse_two_streams(streams, "gradient_x_input at a block")
    scores = (states_at(hidden, at) * states_at(hidden_grad, at)).sum(dim=-1)
    return scores.masked_fill(~mask, 0)
