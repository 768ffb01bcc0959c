"""The state of torch that whyformer computes in, whatever the caller's is.

    with neutral_torch(): ...        no inference mode, gradients on, no autocast, new tensors on the CPU
    @neutral_torch()                 the same around a function

Everything that runs a model enters it, so that people may write `torch.no_grad()`, `torch.inference_mode()`,
`torch.autocast(...)` or `torch.device(...)` around a call and get the same numbers. All of these belong to one thread.
Memory that runs out inside is a ResourceError that says what takes less.

The default dtype, deterministic mode and anomaly mode belong to the whole process, in which other threads may be at
work, so they stay as they are; no number may depend on them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from whyformer._plain.failure import is_out_of_memory, make_memory_error

# Whether a default device of the caller is out of force in this thread.
is_displaced: ContextVar[bool] = ContextVar("is_displaced", default=False)


@contextmanager
def neutral_torch() -> Iterator[None]:
    """Inside, torch is as a fresh thread finds it; afterwards, and after an exception, as the caller had it."""
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":
            stack.callback(is_displaced.reset, is_displaced.set(True))
            stack.enter_context(torch.device("cpu"))
        # The kinds of device for which autocast is on.
        kinds = {"cpu", "cuda"}
        if (accelerator := torch.accelerator.current_accelerator()) is not None:
            kinds.add(accelerator.type)
        for device in sorted(kind for kind in kinds if torch.is_autocast_enabled(kind)):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.inference_mode(False))  # also turns gradients on
        stack.enter_context(torch.enable_grad())
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise make_memory_error(error) from error


@contextmanager
def use_device_of_model(device: torch.device) -> Iterator[None]:
    """Let a model create tensors on its own device if the caller has a default device; else nothing changes."""
    if device.type == "cpu" or not is_displaced.get():
        yield
        return
    with device:
        yield


def leave_inference(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it if it was made in inference mode: such tensors cannot be part of a graph."""
    return tensor.clone() if tensor.is_inference() else tensor
