r"""Transformer attribution: attention relevance weighted by its gradient, combined by rollout.

$$ C = \bar A_{L-1} \cdots \bar A_{s+1}\,\bar A_s, \qquad
   \bar A_l = I + \mathbb{E}_h\left[(\nabla A_l^h \odot R_{A_l^h})^+\right] $$

of which the row of the readout is the explanation. Every head is clipped at 0 *before* the mean over heads.
Chefer, Gur & Wolf, Transformer Interpretability Beyond Attention Visualization, CVPR 2021, section 3. arXiv:2012.09838

The paper numbers blocks from the output, so its $\bar A^{(1)}$ is our $\bar A_{L-1}$; the product is the same. It uses
all blocks ($s = 0$). The released ViT code leaves out block 0. The released BERT code normalises the rows of
$\bar A_l$, uses the last block alone ($s = L-1$) and puts the smallest score of the row at CLS. Where it sums over the
batch in the relevance of skip connections, we sum over one example.

Ablations of the paper's Table 3: "no_gradient" is $I + \mathbb{E}_h[(R_{A_l})^+]$ in the same product; "last_block" and
"block_1" are $\mathbb{E}_h[(\nabla A_l \odot R_{A_l})^+]$ of that one block, without $I$ and product. "block_1" is the
second from the input, the earliest that the released ViT code uses.

We propagate one row, $r \leftarrow r\,\bar A_l$ from the last layer to `start`, which gives the same product.
"""

from collections.abc import Sequence

from torch import Tensor

from whyformer._plain.setting_checks import allow_choice
from whyformer.errors import MethodError
from whyformer.methods._readout_row import mask_padding, multiply_row, propagate_row
from whyformer.methods._registry import Setting, method
from whyformer.methods._settings import apply_preset, check_method_settings, resolve_layer

PRESETS: dict[str, dict[str, Setting]] = {
    "paper": {"start": 0, "normalise": False, "own": "keep"},
    "released_vit": {"start": 1, "normalise": False, "own": "keep"},
    "released_bert": {"start": -1, "normalise": True, "own": "min"},
}
ONE_BLOCK_ABLATIONS: dict[str | None, int] = {"last_block": -1, "block_1": 1}
ABLATIONS = (None, "no_gradient", *ONE_BLOCK_ABLATIONS)


@method(paper="Chefer et al., CVPR 2021", class_specific=True, signed=False, recipe="chefer")
@check_method_settings(preset=allow_choice(tuple(PRESETS)), ablation=allow_choice(ABLATIONS))
def transformer_attribution(
    attention_grad: Sequence[Tensor],
    attention_relevance: Sequence[Tensor],
    readout: Tensor,
    mask: Tensor,
    *,
    preset: str = "paper",
    start: int | None = None,
    normalise: bool | None = None,
    own: str | None = None,
    ablation: str | None = None,
) -> Tensor:
    """How much each token supports the target, by gradient-weighted attention relevance over all layers.

    preset: "paper", "released_vit" or "released_bert"; explicit settings override the preset.
    start: the first layer, counted from the input, that is included.
    normalise: scale the rows of each layer to sum to 1.
    own: what to do with the score of the readout token itself: "keep" it, or set it to "zero" or to the row's "min".
    ablation: "no_gradient", "last_block" or "block_1".
    """
    chosen = apply_preset(PRESETS, preset, start=start, normalise=normalise, own=own)
    layers = len(attention_relevance)
    if ablation in ONE_BLOCK_ABLATIONS:
        check_one_block(ablation, layers, start=start, normalise=normalise)
        block = ONE_BLOCK_ABLATIONS[ablation] % layers
        row = multiply_row(readout, class_relevance(attention_grad[block], attention_relevance[block]))
        return mask_padding(row, readout, mask, chosen["own"])
    row = readout
    for layer in reversed(range(resolve_layer("start", chosen["start"], layers), layers)):
        grad = None if ablation == "no_gradient" else attention_grad[layer]
        row = propagate_row(row, class_relevance(grad, attention_relevance[layer]), normalise=chosen["normalise"])
    return mask_padding(row, readout, mask, chosen["own"])


def class_relevance(grad: Tensor | None, relevance: Tensor) -> Tensor:
    weighted = relevance if grad is None else grad * relevance
    return weighted.clamp(min=0).mean(dim=1)  # batch query key


def check_one_block(ablation: str | None, layers: int, **given: Setting) -> None:
    if ONE_BLOCK_ABLATIONS[ablation] >= layers:
        raise MethodError(
            f"ablation={ablation!r} uses the second block from the input, but this model has {layers} block.",
            code="E_OPTION",
        )
    for setting, value in given.items():
        if value is not None:
            raise MethodError(
                f"{setting}={value!r} cannot be combined with ablation={ablation!r}, which uses a single block "
                "without a product. Remove one of them.",
                code="E_OPTION",
            )
