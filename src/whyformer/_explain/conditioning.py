"""How much rounding can change an explanation: the estimate of its relevance pass, and on request a measurement.

The measurement runs the method again with all weights, and all inputs that are not integers, moved by one rounding:
multiplied by 1 + eps or 1 - eps of the precision in which it runs, with a fixed seed. (Only the inputs would not be
enough: token ids cannot be moved, and half of the rounding errors of the forward pass stay the same.)
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whyformer._engine import LazyLayers, RoundingEstimate, choose_relevance_dtype, make_shadow
from whyformer._model import EncodedBatch, Model, change_weights
from whyformer._plain.tokens import Pieces
from whyformer.results.comparison import rank_correlation
from whyformer.results.conditioning import TOP, Conditioning
from whyformer.results.explanation import Explanation


def watch_attention_layers(captured: dict[str, Any]) -> set[int]:
    """A set that is filled with the layers of the attention relevance that a method reads."""
    read: set[int] = set()
    if "attention_relevance" in captured:
        layers = captured["attention_relevance"]
        captured["attention_relevance"] = LazyLayers([partial(read_layer, layers, i, read) for i in range(len(layers))])
    return read


def read_layer(layers: Any, layer: int, read: set[int]) -> Tensor:
    read.add(layer)
    return layers[layer]


def estimate_conditioning(estimate: RoundingEstimate, needs: Collection[str], read: Sequence[int]) -> Conditioning:
    """The estimate at what the method reads: the attention of these layers, or the end of the relevance pass."""
    reads_end = any(need.endswith("_relevance") and need != "attention_relevance" for need in needs)
    return Conditioning(estimate.arrived if reads_end else estimate.at_attention(read))


def measure_conditioning(
    explain_again: Callable[[Model, EncodedBatch], Explanation], model: Model, encoded: EncodedBatch, e: Explanation
) -> Conditioning:
    """The change of the scores when everything is moved by one rounding."""
    # The model with every weight moved by one rounding of the precision in which relevance is computed.
    dtype = choose_relevance_dtype(model)
    shadow = make_shadow(model.module, dtype)
    change_weights(shadow, lambda weight: move_by_rounding(weight, dtype or weight.dtype))
    moved = explain_again(replace(model, module=shadow), move_inputs(encoded, model))
    pairs = [torch.stack([e.scores[i], moved.scores[i]]).double()[:, select_shown(e, i)] for i in range(len(e))]
    return replace(
        e.conditioning,
        change=torch.stack([(a - b).abs().max() / a.abs().max().clamp_min(1e-300) for a, b in pairs]),
        rank_correlation=torch.stack([rank_correlation(pair)[0, 1] for pair in pairs]).nan_to_num(1.0),
        same_top=torch.stack([find_top(a).eq(find_top(b)).all() for a, b in pairs]).double(),
    )


def select_shown(e: Explanation, example: int) -> Tensor:
    """True for patches and for tokens that are neither padding nor special."""
    tokens = e.tokens[example]
    if not isinstance(tokens, Pieces):
        return torch.ones(len(tokens), dtype=torch.bool)
    own = ~(torch.tensor(tokens.padding) | torch.tensor(tokens.special))
    return own if bool(own.any()) else ~torch.tensor(tokens.padding)


def find_top(scores: Tensor) -> Tensor:
    """The indices of the highest scores, highest first; of equal scores, the first."""
    return scores.argsort(descending=True, stable=True)[:TOP]


def move_inputs(encoded: EncodedBatch, model: Model) -> EncodedBatch:
    """The inputs that are not integers, moved by one rounding."""
    dtype = choose_relevance_dtype(model) or model.dtype
    inputs = {
        name: move_by_rounding(given, dtype, encoded.batch_axis) if given.is_floating_point() else given
        for name, given in encoded.inputs.items()
    }
    return replace(encoded, inputs=inputs)


def move_by_rounding(tensor: Tensor, dtype: torch.dtype, batch_axis: int | None = None) -> Tensor:
    """Every entry multiplied by 1 + eps or 1 - eps of dtype, at random with a fixed seed; examples all the same way."""
    generator = torch.Generator(device=tensor.device).manual_seed(0)
    shape = [1 if axis == batch_axis else size for axis, size in enumerate(tensor.shape)]
    up = torch.rand(shape, generator=generator, device=tensor.device) < 0.5
    step = torch.finfo(dtype).eps
    wide = tensor.to(dtype)
    return torch.where(up, wide * (1 + step), wide * (1 - step))
