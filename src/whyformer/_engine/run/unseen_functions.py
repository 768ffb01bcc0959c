"""Functions that hide their operations from interception: scripted, compiled, or an autograd function.

Functions that `torch.jit.script` compiled, run as they are written, so that interception sees their operations.

Torch calls a scripted function past every mode, but keeps the function that it was made from. The methods of a shadow
that may call one get other globals, in which the name stands for the original; those of the module stay as they are.

Functions that a model compiles itself (`torch.compile`), run as they are written, so that interception sees them.

Torch has one switch for the whole process, `torch.compiler.set_stance`. It is set while such a model runs here, and
only then: what other threads compile meanwhile also runs as it is written. Runs without interception do the same, or
every batch size of a perturbation would be compiled anew.

Autograd functions of a model's own that compute a known activation, told by their numbers.

A `torch.autograd.Function` hides what it computes: BLOOM writes GELU as one, RecurrentGemma a square root. Its node
keeps the tensor it was given for its backward pass. If a known activation of that tensor gives the same numbers, the
function is that activation and gets its rule.
"""

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from whyformer._engine.run.foreign_errors import passes_through
from whyformer._engine.run.model_memory import RunAgain, learnt
from whyformer._plain.private_torch import forward_class_of, source_of_scripted


@cache
def find_scripting_methods(kind: type[nn.Module]) -> tuple[types.FunctionType, ...]:
    """The methods of a class that are written in a file with scripted functions."""
    methods = [getattr(kind, name) for owner in kind.__mro__ if owner is not nn.Module for name in vars(owner)]
    plain = [method for method in dict.fromkeys(methods_of(methods)) if has_scripted(method.__globals__)]
    return tuple(plain)


def methods_of(values: list[Any]) -> list[types.FunctionType]:
    return [value for value in values if isinstance(value, types.FunctionType)]


def has_scripted(given: dict[str, Any]) -> bool:
    return any(isinstance(value, torch.jit.ScriptFunction) for value in given.values())


def call_originals(shadow: nn.Module, methods: tuple[types.FunctionType, ...]) -> None:
    """Let these methods of a shadow call the originals of scripted functions, also by way of other functions there."""
    for method in methods:
        copied = copy_with_globals(method, make_globals(method.__globals__))
        shadow.__dict__[method.__name__] = types.MethodType(copied, shadow)


def make_globals(given: dict[str, Any]) -> dict[str, Any]:
    """Globals with originals in the place of scripted functions, for all functions of the file."""
    made = dict(given)
    for name, value in given.items():
        if isinstance(value, torch.jit.ScriptFunction):
            original = source_of_scripted(value)
            made[name] = value if original is None else original
        elif isinstance(value, types.FunctionType) and value.__globals__ is given:
            made[name] = copy_with_globals(value, made)
    return made


def copy_with_globals(function: types.FunctionType, given: dict[str, Any]) -> types.FunctionType:
    closure, defaults = function.__closure__, function.__defaults__
    copied = types.FunctionType(function.__code__, given, function.__name__, defaults, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(function.__dict__)
    return copied


# --- compiled functions -----------------------------------------------------------------------------------------------


_lock = Lock()
_running = 0  # runs in all threads
_stance = ExitStack()


def notice_compiled_part(module: nn.Module, error: Exception) -> None:
    """Start the run again if the compiler failed on a part of a model that was not known to have any."""
    if not learnt(module).compiles and passes_through(error.__traceback__, "torch._dynamo.eval_frame"):
        learnt(module).compiles = True
        raise RunAgain from error


@contextmanager
def run_compiled_parts_as_written() -> Iterator[None]:
    """Inside, compiled functions run without the compiler."""
    _change_count(+1)
    try:
        yield
    finally:
        _change_count(-1)


def _change_count(by: int) -> None:
    global _running
    with _lock:
        _running += by
        if by == _running == 1:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        elif _running == 0:
            _stance.close()


# --- autograd functions -----------------------------------------------------------------------------------------------


KNOWN: tuple[Callable[[Tensor], Tensor], ...] = (
    partial(F.gelu, approximate="tanh"), F.gelu, F.silu, F.relu, torch.sigmoid, torch.tanh, torch.sqrt, F.mish,
    F.softplus, torch.exp,
)  # fmt: skip
LEAST = 3  # different numbers, so that two functions are told apart


def is_result_of_own_function(tensor: Tensor) -> bool:
    """Whether a function of the model, or of a library, computed it; not one of ours."""
    node: object = tensor.grad_fn
    return isinstance(node, BackwardCFunction) and not is_ours(forward_class_of(node))


def is_ours(function: type | None) -> bool:
    return function is not None and function.__module__.startswith("whyformer.")


def find_known_function(result: Tensor) -> Callable[[], Tensor] | None:
    """The known activation that gives this result, of the tensor that it was computed from; None if there is none."""
    saved = getattr(result.grad_fn, "saved_tensors", ())
    for given in saved:
        if given is None or not given.requires_grad or given.shape != result.shape or given.unique().numel() < LEAST:
            continue
        if given.grad_fn is result.grad_fn:  # a function that keeps its result: relu of a softmax is that softmax
            continue
        for function in KNOWN:
            if torch.allclose(function(given.detach()), result.detach(), rtol=1e-5, atol=1e-6):
                return partial(function, given)
    return None
