"""Odd things to throw at the library, drawn by a seeded generator, and what must be true whatever happens.

    ATTACK_SEED=7 ATTACK_SIZE=2.5 make slow

A fresh seed draws fresh calls; the seed is part of every report of a failure. The size multiplies how many are drawn.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SEED = int(os.environ.get("ATTACK_SEED", "1"))
SIZE = float(os.environ.get("ATTACK_SIZE", "1"))


def make_random(part: str) -> Random:
    """One independent generator per part of the attack."""
    return Random(f"{SEED} {part}")


# --- torch modes ------------------------------------------------------------------------------------------------------


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def nested(*modes: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield


MODES: dict[str, Callable[[], Any]] = {
    "plain": lambda: nested(),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast under no_grad": lambda: nested(torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16)),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "default device meta": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


# --- values -----------------------------------------------------------------------------------------------------------

ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**9, -(10**9), 2**63, 0.0, 0.5, 1.0, -0.5, 1e-300, 1e300, float("nan"),
    float("inf"), float("-inf"), "", "zero", "no such thing", "\x1b[31m", "９", b"bytes", (), (1, 2), [], [0.5, 0.1],
    {}, {"a": 1}, set(), object(), torch.tensor(1.0), torch.ones(3), np.float64(0.5), np.int64(3), np.ones(2), len,
    range(3), 1 + 2j, "1e3", "-1", "True", torch.zeros(2, device="meta"), torch.tensor(2), np.array([0, 1]), [0, -1],
    {0, 1}, [None], [[0]], np.array("zero"), "\ud800", -0.0, [True], "0",
]  # fmt: skip

ODD_TARGETS: list[Any] = [
    None, 0, 1, 3, -1, 99, 1.5, float("nan"), "LABEL_0", "LABLE_0", "", "no", [0, 1, 2], [0], [None, 1, 2], (),
    [0, 1, 2, 3], torch.tensor([0, 1, 2]), torch.tensor(1), np.int64(2), True, object(), b"0", {"a": 1}, "\ud800",
    [[0], [1], [2]], torch.zeros(3, device="meta"), torch.ones(3).to_sparse(), torch.ones(3, 2), torch.tensor(1j),
    np.array(["a", "b", "c"]), [torch.tensor(0), np.int8(1), 2], [b"0", "\ud800", object()], 2**70, len, [[]],
]  # fmt: skip


def make_inference_tensor(given: Tensor) -> Tensor:
    with torch.inference_mode():
        return given.clone()


def odd_tensors(given: Tensor, random: Random) -> Tensor:
    """The given tensor, bent."""
    bends: list[Callable[[Tensor], Any]] = [
        lambda t: t,
        lambda t: t[:0],
        lambda t: t[0],
        lambda t: t[None],
        lambda t: t.to_sparse() if t.dim() else t,
        lambda t: t.to("meta"),
        lambda t: t.to(torch.complex64),
        lambda t: t.to(torch.float16),
        lambda t: t.to(torch.int8),
        lambda t: t.bool(),
        lambda t: t.double() * float("nan"),
        lambda t: t.double() * float("inf"),
        lambda t: t * 10**6,
        lambda t: -t,
        lambda t: t.flip(-1),
        lambda t: t.repeat(*[1] * (t.dim() - 1), 50),
        lambda t: t[..., :1],
        lambda t: t[..., :0],
        lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
        lambda t: nn.Parameter(t.clone()) if t.is_floating_point() else t,
        lambda t: t.numpy() if t.device.type == "cpu" and not t.is_sparse else t,
        lambda t: t.tolist(),
        lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
        lambda t: torch.zeros_like(t),
        lambda t: t.expand(3, *t.shape[1:]) if t.shape[0] == 1 else t,
        lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
        lambda t: torch.nested.nested_tensor([t[0], t[0]]) if t.dim() > 2 else t,
        lambda t: torch.nested.nested_tensor([t[0], t[0][:2]], layout=torch.jagged) if t.dim() > 1 else t,
        lambda t: t.to_sparse_csr() if t.dim() == 2 else t,
        lambda t: t[:-1],
        lambda t: t[:, None],
        lambda t: t.to(torch.bfloat16),
        lambda t: t.to(torch.uint8),
        lambda t: t.to(torch.float8_e4m3fn),
        lambda t: make_inference_tensor(t),
        lambda t: torch.as_strided(t, t.shape, [0] * t.dim()),
        lambda t: None,
    ]
    with warnings.catch_warnings(action="ignore"):  # sparse, nested and quantised tensors are said to be new or old
        return random.choice(bends)(given)


# --- what must stay ---------------------------------------------------------------------------------------------------


def describe_state(module: nn.Module) -> tuple[Any, ...]:
    """Everything about a module that an explanation must not change."""
    weights = tuple(
        (name, tensor._version, tensor.data_ptr(), tensor.detach().numpy().tobytes())
        for name, tensor in module.state_dict(keep_vars=True).items()
    )
    parts = tuple(
        (
            name,
            part.training,
            tuple(sorted(part.__dict__)),
            *(len(part.__dict__[hooks]) for hooks in sorted(part.__dict__) if hooks.endswith("hooks")),
        )
        for name, part in module.named_modules()
    )
    gradients = tuple((p.requires_grad, p.grad is None) for p in module.parameters())
    return weights, parts, gradients


def describe_torch() -> tuple[Any, ...]:
    """The state of torch that belongs to the caller."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.random.get_rng_state().sum().item(),
        torch.get_num_threads(),
    )
