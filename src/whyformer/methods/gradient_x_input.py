r"""Gradient times input.

$$ s_j = \sum_c x_{jc}\,\frac{\partial y}{\partial x_{jc}} $$

Shrikumar, Greenside, Shcherbina & Kundaje, Not Just a Black Box: Learning Important Features Through Propagating
Activation Differences, 2016. arXiv:1605.01713

For a text, $x$ is what enters the first block and $c$ runs over its channels; for a picture, $x$ is the normalised
picture the model is given and $c$ runs over colours. With `at` a number, $x$ are the hidden states there: 0 is what
enters the first block (words with their positions, after a norm where the model has one), -1 what leaves the last. The
sum of what enters each block is `cat`.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._boundary import states_at
from whyformer.methods._registry import method


@method(
    paper="Shrikumar et al., 2016",
    class_specific=True,
    signed=True,
    extra_needs={"at": ("hidden", "hidden_grad", "mask")},
)
def gradient_x_input(
    input: Tensor,
    input_grad: Tensor,
    hidden: Sequence[Tensor] | None = None,
    hidden_grad: Sequence[Tensor] | None = None,
    mask: Tensor | None = None,
    *,
    at: str | int = "input",
) -> Tensor:
    """How far the explained output would follow if each token or pixel were scaled; negative speaks against it.

    at: "input", or the number of a block, for the hidden states that enter it; below 0 counts from the output.
    """
    if hidden is None or hidden_grad is None or mask is None:
        return (input * input_grad).sum(dim=-1)
    scores = (states_at(hidden, at) * states_at(hidden_grad, at)).sum(dim=-1)
    return scores.masked_fill(~mask, 0)
