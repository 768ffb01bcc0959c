"""Token mixing without attention: found by what was computed, then measured by a gradient.

A block mixes tokens without attention (a recurrence, a convolution, linear attention, also beside attention) if its
state at one token depends on its input at another along paths that avoid all attention. One token in the middle is
looked at: it has tokens before and after it. The backward pass that this takes is run only if the forward used an
operation that can mix tokens, or has blocks without attention, and once for each model and course of its forward.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whyformer._engine.run.graph import compute_gradients
from whyformer._engine.run.model_memory import recall
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import axis_of, trace_of
from whyformer.errors import UnsupportedModel

if TYPE_CHECKING:
    from whyformer._engine.run.intercept import Intercept

# Operations that may join tokens, besides products
MIXING_OPERATIONS = operations.CONVOLUTIONS | frozenset(
    "cumsum cumprod cummax cummin logcumsumexp conv_transpose1d gru lstm rnn_tanh rnn_relu gru_cell lstm_cell "
    "rnn_tanh_cell rnn_relu_cell fft_fft fft_rfft fft_fft2 roll flip pad constant_pad_nd setitem avg_pool1d avg_pool2d "
    "max_pool1d associative_scan group_norm instance_norm linalg_solve_triangular".split()
)


def note_mixing(mode: "Intercept", operation: Operation, result: Argument) -> None:
    """Count what may join tokens, and is not one of the operations that attention consists of."""
    name, given = operation.name, operation.given
    if name == "logsumexp" and isinstance(result, Tensor):
        mode.denominators.append(result)
    label = trace_of(operation.args[0]).tokens if name == "linear" and operation.args else None
    is_over_tokens = label is not None and label.size(-1) > 1
    joins = name in MIXING_OPERATIONS or is_over_tokens or (name == "stack" and len(given) > 2)
    if joins and not has_no_tokens(given[0]):
        mode.mixers = hash((mode.mixers, name))
    elif name in operations.PRODUCTS and len(given) > 1:  # of two states, or of a constant matrix and a state
        left, right = given[-2:]
        mode.products += right.requires_grad and right.dim() > 2 and left.dim() > 1


def has_no_tokens(tensor: Tensor) -> bool:
    """Whether this is [batch channel]: pooled states, logits."""
    trace = trace_of(tensor)
    return tensor.dim() == 2 and trace.samples is not None and axis_of(trace.tokens) is None


def find_unattended(mode: "Intercept", states: Sequence[Tensor]) -> tuple[bool, ...]:
    """For each block between these states, whether it mixes tokens without attention; not asked of images."""
    is_image = mode.leaf is not None and trace_of(mode.leaf).is_pixels
    if is_image or not (mode.may_mix or len(states) - 1 > len(mode.sites)):
        return (False,) * (len(states) - 1)
    return tuple(mixes_tokens(mode, before, after) for before, after in pairwise(states))


def mixes_tokens(mode: "Intercept", before: Tensor, after: Tensor) -> bool:
    """Whether the state after depends at one token on the state before at another, along paths without attention."""
    if not after.requires_grad or not before.requires_grad or after.dim() != 3:
        return False
    if mode.known_mixing is None:
        mode.known_mixing = {} if mode.guard is None else recall(mode.guard.module, "mixing")
    known = mode.known_mixing
    steps = (getattr(tensor, "_whyformer_step", 0) for tensor in (before, after))
    key = (mode.step, mode.mixers, mode.products, min(max(after.shape[:2]), 3), *steps)
    if key not in known:
        known[key] = measure_mixing(mode, before, after)
    return known[key]


def measure_mixing(mode: "Intercept", before: Tensor, after: Tensor) -> bool:
    """Whether the state after depends at one token on the state before at another, along paths without attention."""
    axis = find_token_axis(after)
    token = after.size(axis) // 2
    looked_at = after.select(axis, token).real
    direction = torch.linspace(1, 2, looked_at.size(-1), device=after.device, dtype=looked_at.dtype).cos()
    of_attention = [*(site.output for site in mode.sites), *mode.denominators]
    handles = [tensor.register_hook(torch.zeros_like) for tensor in of_attention if tensor.requires_grad]
    try:
        score = (looked_at * direction).sum()
        slopes: Sequence[Tensor | None] = compute_gradients(score, [before], retain_graph=True, allow_unused=True)
    except UnsupportedModel:
        return False
    finally:
        for handle in handles:
            handle.remove()
    if slopes[0] is None:
        return False
    elsewhere = slopes[0].abs().movedim(find_token_axis(before), 0).flatten(1).sum(1)
    if len(elsewhere) != after.size(axis):  # other tokens: which is which is not known
        return False
    elsewhere[token] = 0
    return bool((elsewhere > 0).any())


def find_token_axis(state: Tensor) -> int:
    """0 for [token batch channel], 2 for [batch channel token], else 1."""
    axis = axis_of(trace_of(state).tokens)
    return axis if axis is not None else 0 if axis_of(trace_of(state).samples) == 1 else 1
