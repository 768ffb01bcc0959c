r"""SmoothGrad: the gradient, averaged over noisy copies of the input.

$$ s_j = \max_c \left| \frac{1}{n} \sum_{i=1}^{n} \frac{\partial y}{\partial x_{jc}}(x + \varepsilon_i) \right|,
   \qquad \varepsilon_i \sim \mathcal{N}(0, \sigma^2), \quad \sigma = \nu\,(\max x - \min x) $$

with $\nu$ the noise as a share of the range of the input. Smilkov, Thorat, Kim, Viégas & Wattenberg, SmoothGrad:
removing noise by adding noise, ICML workshop 2017. arXiv:1706.03825

The paper finds 10 to 20 % noise and 50 samples good for pictures; ours are 15 % and 25. It leaves open how colours
become one number; as for saliency, we take the largest magnitude, after the average over samples. For a text $x$ is
what enters the first block. The noise depends on the seed and on the example alone; padding gets none.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.probe import Probe
from whyformer._plain.progress import show_progress
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods._registry import method
from whyformer.methods._settings import check_choice
from whyformer.methods.saliency import CHANNEL_REDUCTIONS

COPIES_PER_PASS = 64  # copies asked about at once


@method(
    paper="Smilkov et al., ICML workshop 2017",
    class_specific=True,
    signed=False,
    cost="a forward and a backward for each of `samples` noisy copies",
)
def smooth_grad(probe: Probe, *, samples: int = 25, noise: float = 0.15, reduce: str = "max", seed: int = 0) -> Tensor:
    """How strongly the explained output reacts to a small change of each token or pixel, around the input.

    samples: noisy copies. noise: the standard deviation as a share of the input's range.
    reduce: over channels, "max", "l1" or "l2".
    """
    check_noise_settings(samples, noise)
    check_choice("reduce", reduce, tuple(CHANNEL_REDUCTIONS))
    leaf = probe.leaf
    total = torch.zeros_like(leaf)
    with show_progress(samples * probe.batch, "noisy copies") as progress:
        for copies, of in make_noisy_copies(probe, samples, noise, seed):
            _, gradient = probe.run_at_leaf(copies, of)
            assert gradient is not None
            for example in of.unique().tolist():  # not index_add_, which on a GPU adds in any order
                total[example] += gradient[of == example].sum(0)
            progress.advance(len(of))
    return CHANNEL_REDUCTIONS[reduce](total / samples)


def make_noisy_copies(probe: Probe, samples: int, noise: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Copies of all examples, some at a time, and of which example each is."""
    copies, of = [], []
    for example in range(probe.batch):
        leaf, real = probe.leaf[example], find_real_places(probe, example)
        low, high = leaf[real].min(), leaf[real].max()
        generator = make_generator(seed, int(probe.fingerprints[example]))
        for _ in range(samples):
            copy = leaf.clone()
            drawn = torch.randn(leaf[real].shape, dtype=torch.float64, generator=generator)
            copy[real] += noise * (high - low) * drawn.to(leaf)
            copies.append(copy)
            of.append(example)
            if len(copies) == COPIES_PER_PASS:
                yield torch.stack(copies), torch.tensor(of)
                copies, of = [], []
    if copies:
        yield torch.stack(copies), torch.tensor(of)


def find_real_places(probe: Probe, example: int) -> Tensor:
    """Which places of the leaf are no padding."""
    mask, leaf = probe.encoded.token_mask, probe.leaf
    if mask is None or leaf.dim() != 3 or mask.size(1) != leaf.size(1):
        return torch.ones(leaf.shape[1:-1], dtype=torch.bool, device=leaf.device)
    return mask[example].to(leaf.device)


def check_noise_settings(samples: Any, noise: Any) -> None:
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise MethodError(f"samples={samples!r} is not a number of copies. Give a whole number from 1 upwards.")
    if not isinstance(noise, int | float) or not 0 <= noise < float("inf"):
        raise MethodError(f"noise={noise!r} is not a share of the range. Give 0 or more, such as 0.15.")
