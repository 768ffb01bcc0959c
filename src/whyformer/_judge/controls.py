r"""Controls: maps that say nothing about an input, which a method has to beat before judge() recommends it.

$$ \text{centre blob: } e^{-2 (y^2 + x^2)} \qquad \text{random pixels: } \mathcal{U}[0, 1)
\qquad \text{first words: } \frac{n - j + 1}{n} \qquad \text{last words: } \frac{j}{n} $$

with $y$ and $x$ from -1 to 1 over the height and the width of the image, and $j = 1 \dots n$ the position among the
tokens of a text that are neither special nor padding.

`chance` (methods/chance.py) draws a score per patch or token, so it is a control only for maps that are as coarse and
as scattered as itself. Each of these shows what a metric gives for something else that is no knowledge of the input:

    centre_blob     objects are mostly in the centre; Judd et al., Learning to Predict Where Humans Look, ICCV 2009
    random_pixels   chance for maps of single pixels: scattered black dots harm a prediction wherever they fall
    first_words     texts that begin with what matters: the lead baseline of summarisation, Nenkova, AAAI 2005
    last_words      texts that end with their conclusion, and models that read the answer at the last token

Word position has two rows because either end can be the good one, and a method must beat the better of the two. The
scores depend on the size of the image or the number of tokens alone, and random pixels on the seed: every image of a
size gets the same dust, in any batch, dtype and order.

Controls are no methods that explain() offers: they are not in METHODS, and `all` does not contain them.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whyformer._explain.method_call import MethodCall, choose_method
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_seed
from whyformer._runs.choice import is_chance
from whyformer._runs.preparation import KindOfInput
from whyformer.methods._registry import Method, describe_method
from whyformer.methods._settings import check_method_settings


def centre_blob(input: Tensor) -> Tensor:
    """A Gaussian in the centre of every image, with a standard deviation of a quarter of each side."""
    rows, columns = (  # exp(-2 z²) at the centres of pixels from -1 to 1; exactly symmetric
        torch.tensor([math.exp(-2 * ((2 * i + 1 - size) / size) ** 2) for i in range(size)], dtype=torch.float64)
        for size in input.shape[1:3]
    )
    return (rows[:, None] * columns).expand(len(input), -1, -1)


@check_method_settings(seed=allow_seed)
def random_pixels(input: Tensor, *, seed: int = 0) -> Tensor:
    """A meaningless random number for each pixel, the same for every image of this size."""
    dust = torch.rand(tuple(input.shape[1:3]), dtype=torch.float64, generator=make_generator(seed, 0))
    return dust.expand(len(input), -1, -1)


def first_words(mask: Tensor, special: Tensor) -> Tensor:
    """The earlier a token, the higher its score."""
    positions, counts = number_words(mask, special)
    return torch.where(positions > 0, counts - positions + 1, 0) / counts.clamp(min=1)


def last_words(mask: Tensor, special: Tensor) -> Tensor:
    """The later a token, the higher its score."""
    positions, counts = number_words(mask, special)
    return positions / counts.clamp(min=1)


def number_words(mask: Tensor, special: Tensor) -> tuple[Tensor, Tensor]:
    """[batch token]: 1, 2, ... for the tokens that are neither special nor padding, else 0; [batch 1]: how many."""
    ordinary = (mask & ~special).cpu()
    return (ordinary.cumsum(1) * ordinary).double(), ordinary.sum(1, keepdim=True).double()


def describe_control(compute: Any, paper: str) -> Method:
    return describe_method(compute, paper=paper, class_specific=False, signed=False, recipe=None)


IMAGE_CONTROLS = (
    describe_control(centre_blob, "Judd et al., ICCV 2009"),
    describe_control(random_pixels, "Hooker et al., NeurIPS 2019"),
)
TEXT_CONTROLS = (
    describe_control(first_words, "Nenkova, AAAI 2005"),
    describe_control(last_words, "Nenkova, AAAI 2005"),
)
CONTROLS: dict[KindOfInput, tuple[Method, ...]] = {"images": IMAGE_CONTROLS, "texts": TEXT_CONTROLS}
CONTROL_NAMES = frozenset(control.name for controls in CONTROLS.values() for control in controls)


def is_control(label: str) -> bool:
    """Whether a row of the table is chance or another control. A method of a control's name takes its place."""
    return is_chance(label) or label.split("(")[0] in CONTROL_NAMES


def add_controls(methods: Mapping[str, MethodCall], kind: KindOfInput | None) -> dict[str, MethodCall]:
    """The methods, then the controls for this kind of input that are not among them."""
    controls = {control.name: choose_method(control, {}) for control in CONTROLS.get(kind, ())} if kind else {}
    return {**methods, **{label: call for label, call in controls.items() if label not in methods}}
