r"""Gradient times input.

$$ s_j = \sum_c x_{jc}\,\frac{\partial y}{\partial x_{jc}} $$

Shrikumar, Greenside, Shcherbina & Kundaje, Not Just a Black Box: Learning Important Features Through Propagating
Activation Differences, 2016. arXiv:1605.01713

For a text, $x$ is the input of the first block and $c$ runs over its channels; for an image, $x$ is the normalised
image and $c$ runs over colours. If `at` is a number, $x$ are hidden states: 0 is the input of the first block (word
plus position embeddings, after a norm where the model has one), -1 the output of the last. The sum over the inputs of
all blocks is `cat`.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer.methods._boundary import states_at
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_boundary, check_method_settings


@method(
    paper="Shrikumar et al., 2016",
    class_specific=True,
    signed=True,
    extra_needs={"at": ("hidden", "hidden_grad", "mask")},
)
@check_method_settings(at=allow_boundary)
def gradient_x_input(
    input: Tensor,
    input_grad: Tensor,
    hidden: Sequence[Tensor] | None = None,
    hidden_grad: Sequence[Tensor] | None = None,
    mask: Tensor | None = None,
    *,
    at: str | int = "input",
) -> Tensor:
    """How the explained output changes when each token or pixel is scaled; negative: evidence against the target.

    at: "input", or a block number for the hidden states that enter it; negative counts from the output.
    """
    if hidden is None or hidden_grad is None or mask is None:
        return (input * input_grad).sum(dim=-1)
    scores = (states_at(hidden, at) * states_at(hidden_grad, at)).sum(dim=-1)
    return scores.masked_fill(~mask, 0)
