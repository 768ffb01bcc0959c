"""The settings of torch that a program depends on: which kernels run, and how products are rounded."""

from typing import Any

import torch

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
