"""Translates exceptions of torch and model libraries during a forward into InputError.

What the user's own module raises is not touched: a `raise` or an `assert`, and a mistake in its code. An operation of
torch that it calls, and taking a shape apart, fail because of the inputs.
"""

import dis
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from whyformer._model import unwrap
from whyformer.errors import InputError, ModelError, ResourceError

LIBRARIES = {"torch", "transformers", "timm", "torchvision"}
CALLERS = {f"whyformer._engine.tracing.{name}" for name in ("operations", "composites")}  # where we call torch
FOREIGN_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError, KeyError)


@contextmanager
def refuse_unsuitable_inputs(module: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Turn what a library raises while the model runs into an InputError that lists the inputs."""
    try:
        yield
    except FOREIGN_ERRORS as error:
        is_of_inputs = comes_from_library(error.__traceback__) or comes_from_operation(error)
        if isinstance(error, torch.OutOfMemoryError) or not is_of_inputs:
            raise
        name = type(unwrap(module)).__name__
        if "can't allocate memory" in str(error):
            raise ResourceError(f"Out of memory while {name} ran. Explain fewer examples at once.") from error
        if "use_deterministic_algorithms" in str(error):
            message = f"{name} cannot run while torch.use_deterministic_algorithms is on. {shorten_message(error)}"
            raise ModelError(message, code="E_DEVICE") from error
        given = ", ".join(f"{key} {describe_tensor(tensor)}" for key, tensor in inputs.items())
        raise InputError(
            f"{name} cannot run on these inputs: {given}. {shorten_message(error)}", code="E_TENSOR"
        ) from error


def passes_through(traceback: TracebackType | None, home: str) -> bool:
    """Whether a function of this module was running."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") != home:
        traceback = traceback.tb_next
    return traceback is not None


def comes_from_library(traceback: TracebackType | None) -> bool:
    """The innermost frame belongs to a library, or is where an intercepted operation of torch is called."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    home = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__", ""))
    return home.partition(".")[0] in LIBRARIES or home in CALLERS


def comes_from_operation(error: Exception) -> bool:
    """Whether the innermost frame was calling torch, indexing a tensor, or taking apart a shape of another length."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    does = dis.opname[traceback.tb_frame.f_code.co_code[traceback.tb_lasti]]
    is_of_torch = type(error) is RuntimeError or (type(error) is IndexError and "for dimension" in str(error))
    return does.startswith("UNPACK") or (is_of_torch and not does.startswith(("RAISE", "RERAISE")))


def describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def shorten_message(error: Exception) -> str:
    """The kind of the error and the first line of its message."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:200]}"
