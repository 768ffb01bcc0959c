r"""Attention rollout.

$$ R = \hat A_L \cdots \hat A_{s+1}\,\hat A_s, \qquad \hat A_l \propto \mathbb{E}_h[A_l^h] + \rho\,I $$

of which the row of the readout is the explanation; later layers multiply from the left, rows are scaled to sum to 1.
Abnar & Zuidema, Quantifying Attention Flow in Transformers, ACL 2020, section 3. arXiv:2005.00928

With $\rho = 1$ (`residual`) and normalised rows, $\hat A = (A + I)/2$: the paper. As a baseline of Chefer, Gur & Wolf,
CVPR 2021 (arXiv:2012.09838) the formula has no normalisation; their released ViT code normalises and leaves out the
first layer; their released BERT code normalises (since February 2021) and sets the cell (CLS, CLS) to 0. For attention
with rows that sum to 1, normalised = unnormalised / $2^L$, so only `start` and `own` change the ranking.

The paper has the same tokens at every layer. In a model with windows, or stages that merge tokens (Swin), a window is a
block of $A$, and a merged token counts as so many identical copies, one for each token that it stands for, which share
its attention.

We propagate one row, $r \leftarrow r\,\hat A_l$ from the last layer to `start`, which gives the same product.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice, allow_number
from whyformer.methods._readout_row import mask_padding, propagate_row
from whyformer.methods._registry import Setting, method
from whyformer.methods._settings import apply_preset, check_method_settings, resolve_layer

PRESETS: dict[str, dict[str, Setting]] = {
    "abnar": {"start": 0, "residual": 1.0, "normalise": True, "own": "keep"},
    "paper": {"start": 0, "residual": 1.0, "normalise": False, "own": "keep"},  # as printed by Chefer et al.
    "released": {"start": 1, "residual": 1.0, "normalise": True, "own": "keep"},
    "released_bert": {"start": 0, "residual": 1.0, "normalise": True, "own": "zero"},
}

allow_residual_weight = allow_number("a finite number >= 0 (0: no skip connection)", limit=1e12)


@method(paper="Abnar & Zuidema, ACL 2020", class_specific=False, signed=False)
@check_method_settings(preset=allow_choice(tuple(PRESETS)), residual=allow_residual_weight)
def rollout(
    attention: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    preset: str = "abnar",
    start: int | None = None,
    residual: float | None = None,
    normalise: bool | None = None,
    own: str | None = None,
) -> Tensor:
    """How much of each token would reach the answer if attention and skip connections were the only mixing.

    preset: "abnar", "paper", "released" or "released_bert"; explicit settings override the preset.
    start: the first layer, counted from the input, that is included.
    residual: weight of the skip connection relative to attention; 0 is attention alone.
    own: "keep", "zero" or "min", the score of the readout token.
    """
    chosen = apply_preset(PRESETS, preset, start=start, residual=residual, normalise=normalise, own=own)
    first = resolve_layer("start", chosen["start"], len(attention))
    row = readout
    for layer in reversed(range(first, len(attention))):
        row = propagate_row(
            row, attention[layer].mean(dim=1), residual=chosen["residual"], normalise=chosen["normalise"]
        )
    return mask_padding(row, readout, mask, chosen["own"])
