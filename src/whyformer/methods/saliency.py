r"""Saliency: the magnitude of the gradient.

$$ s_j = \max_c \left| \frac{\partial y}{\partial x_{jc}} \right| $$

Simonyan, Vedaldi & Zisserman, Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency
Maps, ICLR workshop 2014, section 3. arXiv:1312.6034

The paper is about images, with $c$ over colours. For a text $c$ runs over the channels of the input of the first block,
where the norms `reduce="l1"` and "l2" are more common than the maximum. If `at` is a number, $x$ are hidden states: 0
is the input of the first block, -1 the output of the last.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.methods._boundary import states_at
from whyformer.methods._registry import method
from whyformer.methods._settings import allow_boundary, check_method_settings

CHANNEL_REDUCTIONS = {
    "max": lambda grad: grad.abs().amax(dim=-1),
    "l1": lambda grad: grad.abs().sum(dim=-1),
    "l2": lambda grad: grad.norm(dim=-1),
}


@method(
    paper="Simonyan et al., ICLR workshop 2014",
    class_specific=True,
    signed=False,
    extra_needs={"at": ("hidden_grad", "mask")},
)
@check_method_settings(reduce=allow_choice(tuple(CHANNEL_REDUCTIONS)), at=allow_boundary)
def saliency(
    input_grad: Tensor,
    hidden_grad: Sequence[Tensor] | None = None,
    mask: Tensor | None = None,
    *,
    reduce: str = "max",
    at: str | int = "input",
) -> Tensor:
    """How strongly the explained output reacts to a small change of each token or pixel.

    reduce: over channels, "max" (the paper), "l1" or "l2".
    at: "input", or a block number for the hidden states that enter it; negative counts from the output.
    """
    size = CHANNEL_REDUCTIONS[reduce]
    if hidden_grad is None or mask is None:
        return size(input_grad)
    return size(states_at(hidden_grad, at)).masked_fill(~mask, 0)
