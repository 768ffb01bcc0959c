r"""Gradient times input.

$$ s_j = \sum_c x_{jc}\,\frac{\partial y}{\partial x_{jc}} $$

Shrikumar, Greenside, Shcherbina & Kundaje, Not Just a Black Box: Learning Important Features Through Propagating
Activation Differences, 2016. arXiv:1605.01713

For a text, $x$ is what enters the first block and $c$ runs over its channels; for a picture, $x$ is the normalised
picture the model is given and $c$ runs over colours.
"""

from torch import Tensor

from whyformer.method import method


@method(paper="Shrikumar et al., 2016", class_specific=True, signed=True)
def gradient_x_input(input: Tensor, input_grad: Tensor) -> Tensor:
    """How far the explained output would follow if each token or pixel were scaled; negative speaks against it."""
    return (input * input_grad).sum(dim=-1)
