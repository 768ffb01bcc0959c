r"""Chance: random scores, the baseline every comparison includes.

$$ s_j \sim \mathcal{U}[0, 1) $$

A random ranking as the control that a method has to beat:
Hooker, Erhan, Kindermans & Kim, A Benchmark for Interpretability Methods in Deep Neural Networks, NeurIPS 2019.
arXiv:1806.10758

The scores depend only on the seed and the example, not on its position in a batch, its padding, the target, global
random state, the device, or the dtype of the model. An example is identified by its token ids, or by its values in
float32 before they are rounded to the dtype of the model: an image that another library version resizes slightly
differently is a different example.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._plain.random_generator import make_generator
from whyformer.methods._registry import method
from whyformer.methods._settings import check_method_settings


@method(paper="Hooker et al., NeurIPS 2019", class_specific=False, signed=False)
@check_method_settings()
def chance(mask: Tensor, fingerprint: Sequence[int] | Tensor, *, seed: int = 0) -> Tensor:
    """A meaningless random number for each token, always the same for the same example and seed."""
    scores = torch.zeros(mask.shape, dtype=torch.float64)
    real = mask.cpu()
    for example, example_fingerprint in enumerate(fingerprint):
        tokens = int(real[example].sum())
        scores[example, real[example]] = torch.rand(
            tokens, dtype=torch.float64, generator=make_generator(seed, int(example_fingerprint))
        )
    return scores.to(mask.device)
