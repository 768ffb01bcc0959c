r"""SmoothGrad: the gradient, averaged over noisy copies of the input.

$$ s_j = \max_c \left| \frac{1}{n} \sum_{i=1}^{n} \frac{\partial y}{\partial x_{jc}}(x + \varepsilon_i) \right|,
   \qquad \varepsilon_i \sim \mathcal{N}(0, \sigma^2), \quad \sigma = \nu\,(\max x - \min x) $$

with $\nu$ the noise as a fraction of the range of the input. Smilkov, Thorat, Kim, Viégas & Wattenberg, SmoothGrad:
removing noise by adding noise, ICML workshop 2017. arXiv:1706.03825

The paper recommends 10 to 20 % noise and 50 samples for images; our defaults are 15 % and 25. It leaves open how
colours are reduced to one number; as for saliency, we take the largest magnitude, after averaging over samples. For a
text $x$ is the input of the first block. The noise depends only on the seed and the example; padding gets none.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.progress import show_progress
from whyformer._plain.random_generator import make_generator
from whyformer._plain.setting_checks import allow_choice, allow_number, allow_whole_number
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings
from whyformer.methods.saliency import CHANNEL_REDUCTIONS

COPIES_PER_PASS = 64  # copies per forward and backward pass


@method(
    paper="Smilkov et al., ICML workshop 2017",
    class_specific=True,
    signed=False,
    cost="a forward and a backward for each of `samples` noisy copies",
)
@check_method_settings(
    samples=allow_whole_number(1),
    noise=allow_number("a finite number >= 0 (for example 0.15)", limit=1000),
    reduce=allow_choice(tuple(CHANNEL_REDUCTIONS)),
)
def smooth_grad(probe: Probe, *, samples: int = 25, noise: float = 0.15, reduce: str = "max", seed: int = 0) -> Tensor:
    """How strongly the explained output reacts to a small change of each token or pixel, averaged around the input.

    samples: noisy copies.
    noise: the standard deviation as a fraction of the input's range.
    reduce: over channels, "max", "l1" or "l2".
    """
    leaf = probe.leaf
    total = torch.zeros_like(leaf)
    with show_progress(samples * probe.batch, "noisy copies") as progress:
        for copies, of in make_noisy_copies(probe, samples, noise, seed):
            _, gradient = probe.run_at_leaf(copies, of)
            assert gradient is not None
            for example in of.unique().tolist():  # not index_add_, which is not deterministic on a GPU
                total[example] += gradient[of == example].sum(0)
            progress.advance(len(of))
    return CHANNEL_REDUCTIONS[reduce](total / samples)


def make_noisy_copies(probe: Probe, samples: int, noise: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy copies of all examples, in chunks, with the example each belongs to."""
    copies, of = [], []
    for example in range(probe.batch):
        leaf, real = probe.leaf[example], find_real_places(probe, example)
        known = leaf[real][~leaf[real].isnan()]
        low, high = known.min(), known.max()
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
    """The positions of the leaf tensor that are not padding."""
    mask, leaf = probe.encoded.token_mask, probe.leaf
    if mask is None or leaf.dim() != 3 or mask.size(1) != leaf.size(1):
        return torch.ones(leaf.shape[1:-1], dtype=torch.bool, device=leaf.device)
    return mask[example].to(leaf.device)
