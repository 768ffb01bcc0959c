r"""Bi-attribution: attention perception times reasoning feedback.

$$ s = \Big| r\,\prod_{l \ge s} (I + P_l) \Big| \odot r\,\mathbb{E}_h\Big[\Big(\frac1K \sum_{k=0}^{K-1}
   \frac{\partial y}{\partial A_L^h}\Big(\tfrac{k}{K-1}\,x\Big)\Big)^+\Big] $$

The first factor, perception, has two forms: head by head, $P_l = \sum_h I_h A_l^h$ with weights
$I_h \propto \mathbb{E}_{ij}\,|(A_l^h)^\top \nabla A_l^h|_{ij}$ that sum to 1; or token by token,
$P_l = \mathbb{E}_h[A_l^h]\,\mathrm{diag}(\lVert v_j W_O \rVert / \lVert x_j \rVert)$. The second factor, feedback, is
the gradient of the last attention, averaged along the path from a zero input to the input, at $K$ = `steps` points
including both ends.
Chen, Li, Yu, Dou & Xiong, Beyond Intuition: Rethinking Token Attributions inside Transformers, TMLR 2023. The average:
Sundararajan, Taly & Yan, Axiomatic Attribution for Deep Networks, ICML 2017. arXiv:1703.01365

The path follows the released code: from pixels of 0 to the image, and for texts from 0 to the state that enters the
first block, positions included. The other details of that code are `preset="released"`, which depends on the input as
its two parts do. For images it starts at the fourth block (heads) or the sixth (tokens) of twelve; for texts at the
last block (heads) or the fourth from the end (tokens), and it sets the score of CLS to 0. On BERT it agrees with the
code to 1e-12 (tests/golden/authors). The default is the paper's formula for both: it starts after a quarter of the
blocks, which for heads is the released ViT code, and keeps the score of the readout token.
The feedback uses all heads of the last layer, even if `layers` or `heads` select some of them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whyformer._engine import Probe
from whyformer._plain.setting_checks import allow_choice, allow_whole_number
from whyformer.methods._readout_row import mask_padding, multiply_row, propagate_row
from whyformer.methods._registry import method
from whyformer.methods._settings import apply_preset, check_method_settings, resolve_layer

PAPER: dict[str, Any] = {"start": lambda depth: depth // 4, "own": "keep"}
RELEASED: dict[tuple[str, str], dict[str, Any]] = {
    ("image", "head"): {"start": lambda depth: min(3, depth - 1), "own": "keep"},
    ("image", "token"): {"start": lambda depth: min(5, depth - 1), "own": "keep"},
    ("text", "head"): {"start": lambda depth: depth - 1, "own": "zero"},
    ("text", "token"): {"start": lambda depth: max(depth - 4, 0), "own": "zero"},
}


@method(paper="Chen et al., TMLR 2023", class_specific=True, signed=False, cost="`steps` forwards and backwards")
@check_method_settings(
    perception=allow_choice(("head", "token")), steps=allow_whole_number(2), preset=allow_choice(("paper", "released"))
)
def bi_attribution(
    attention: Sequence[Tensor],
    attention_grad: Sequence[Tensor],
    projected: Sequence[Tensor],
    residual: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    probe: Probe,
    *,
    perception: str = "head",
    steps: int = 20,
    preset: str = "paper",
    start: int | None = None,
    own: str | None = None,
) -> Tensor:
    """How much each token supports the target: the attention that reaches it times the gradient at the last attention.

    perception: "head" (heads are weighted by their importance for the class) or "token" (tokens are weighted by how
    much the value projection lengthens them).
    steps: points on the path from a zero input to the input at which the gradient of the last attention is taken.
    preset: "paper", or "released" for the blocks and the score of CLS as in the authors' code; `start`
    and `own` override the preset.
    start: the first layer, counted from the input, that is included; negative counts from the output.
    own: "keep", "zero" or "min", the score of the readout token.
    """
    depth = len(attention)
    presets = {"paper": PAPER, "released": RELEASED["image" if probe.is_image else "text", perception]}
    chosen = apply_preset(presets, preset, start=start, own=own)
    first = chosen["start"](depth) if start is None else resolve_layer("start", start, depth)
    row = readout
    for layer in reversed(range(first, depth)):
        if perception == "head":
            mixing = weigh_heads(attention[layer], attention_grad[layer], mask)
        else:
            stretch = projected[layer].sum(dim=1).norm(dim=-1) / residual[layer].norm(dim=-1).clamp(min=1e-12)
            mixing = attention[layer].mean(dim=1) * stretch[:, None]
        row = propagate_row(row, mixing)
    feedback = multiply_row(readout, average_attention_grad(probe, steps).clamp(min=0).mean(dim=1))
    return mask_padding(row.abs() * feedback, readout, mask, chosen["own"])


def weigh_heads(attention: Tensor, attention_grad: Tensor, mask: Tensor) -> Tensor:
    """[batch query key]: the mean over heads, weighted by their importance for the class."""
    real = (mask[:, :, None] & mask[:, None, :])[:, None]  # padded queries and keys do not count
    attention, grad = (t.masked_fill(~real, 0) for t in (attention, attention_grad))
    weight = (attention.mT @ grad).abs().sum((-1, -2))
    total = weight.sum(-1, keepdim=True)
    weight = torch.where(total > 0, weight / total.masked_fill(total == 0, 1), 1 / weight.size(-1))
    return torch.einsum("bh,bhqk->bqk", weight, attention)


def average_attention_grad(probe: Probe, steps: int) -> Tensor:
    """The gradient of the last attention [batch head query key], averaged from a zero input to the input."""
    examples, total = torch.arange(probe.batch), torch.zeros(())
    for k in range(steps):
        share = k / (steps - 1)
        if probe.is_image:
            total = total + probe.compute_last_attention_grad(share * probe.leaf, examples)
        else:
            total = total + probe.compute_last_attention_grad_scaled(share, examples)
    return total / steps
