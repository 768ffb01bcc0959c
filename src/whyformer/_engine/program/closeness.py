"""The settings of torch that a program depends on: which kernels run, and how products are rounded.

Whether a program computes what the run it was recorded from did, up to what rounding can do.

Values and gradients may differ by a fixed part of the largest value. Relevance may differ by more where it is
ill-conditioned: by what the rounding estimate of its pass says, or by a multiple of what moving the inputs by one
rounding does to it.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture.capture import Capture
from whyformer._engine.program.recording import walk_entries
from whyformer._engine.relevance.recipes import Recipe

# How products of float32 numbers are rounded. Once `fp32_precision` is set, reading the older settings raises.
CUDNN, MKLDNN = torch.backends.cudnn, torch.backends.mkldnn
ROUNDING_BACKENDS: tuple[Any, ...] = (torch.backends.cuda.matmul, CUDNN.conv, CUDNN.rnn, MKLDNN.matmul, MKLDNN.conv)  # type: ignore[attr-defined]


def read_torch_state() -> tuple[Any, ...]:
    """The settings of torch that decide which kernel runs, or in which precision."""
    cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *[part.fp32_precision for part in ROUNDING_BACKENDS],
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled,
    )


def rounds_to_tf32(device: torch.device) -> bool:
    """Whether products of float32 numbers on this device are computed in TF32, with 10 bits instead of 23."""
    return device.type == "cuda" and ROUNDING_BACKENDS[0].fp32_precision not in ("none", "ieee")


# --- closeness --------------------------------------------------------------------------------------------------------


# Of the largest value, in float32. On a CPU there is no difference; kernels of a GPU that add in any order make one,
# which relevance passes enlarge: four times the estimate of the pass is allowed, but not more than MOST_ROUNDING.
TOLERANCE, MOST_ROUNDING = 1e-4, 0.1
TF32_TOLERANCE, MOST_TF32_ROUNDING = 1e-2, 1.0
TF32_UNIT = 2.0**13  # the rounding unit of TF32 in units of float32, for which estimates are made
MOVED = 8  # rounding of other kernels, in units of moving the inputs by one rounding


def is_close(one: Capture, other: Capture, moved: Capture | None = None, *, is_tf32: bool) -> bool:
    """Two captures hold the same numbers, up to what rounding can do.

    moved: a capture of inputs moved by one rounding; relevance may differ by MOVED times as much as this does.
    """
    narrow, wide = find_tolerances(other, is_tf32=is_tf32)
    theirs, ours = list_results(one), list_results(other)
    for key, tensors in ours.items():
        for at, (a, b) in enumerate(zip(theirs[key], tensors, strict=True)):
            bound = wide if key[1] is not None else narrow
            if moved is not None and key[1] is not None:
                bound = max(bound, MOVED * measure_distance(list_results(moved)[key][at], b))
            if not is_close_tensor(a, b, bound):
                return False
    return is_close_tensor(one.logits, other.logits, narrow)


def list_results(capture: Capture) -> dict[tuple[Hashable, Recipe | None], list[Tensor]]:
    values = capture.values if capture.epilogue is None else capture.epilogue
    return {key: walk_entries(value, Tensor) for key, value in values.items()}


def measure_distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest value."""
    if not other.is_floating_point() or not other.numel():
        return 0.0
    a, b = one.detach().double(), other.detach().to(one.device).double()
    return float((a - b).abs().amax() / b.abs().amax().clamp_min(torch.finfo(torch.float32).tiny))


def find_tolerances(capture: Capture, *, is_tf32: bool) -> tuple[float, float]:
    """How far another run may be away, of the largest value: for values and gradients, and for relevance."""
    unit, narrow, most = (TF32_UNIT, TF32_TOLERANCE, MOST_TF32_ROUNDING) if is_tf32 else (1, TOLERANCE, MOST_ROUNDING)
    estimates = [4 * unit * float(estimate.rows[0].max()) for estimate in capture.rounding.values()]
    return narrow, max([narrow, *(min(most, estimate) for estimate in estimates)])


def is_close_tensor(one: Tensor, other: Tensor, bound: float) -> bool:
    """To `bound` of the largest value, in float32; types with fewer bits may differ by more."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = one.detach(), other.detach().to(one.device)
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    wide = bound * max(1.0, torch.finfo(a.dtype).eps / torch.finfo(torch.float32).eps)
    return bool(((a - b).abs().amax() <= wide * b.abs().amax()) | torch.equal(a, b))
