"""What a recorded program of a model depends on besides its inputs, compared before every use.

A snapshot has, for every module, its identity and class, what it keeps (submodules, weights, settings) and whether
it trains; for every weight its memory, shape and version; the model's configuration; and the settings of torch that choose how a
product is computed. Anything that differs makes the program invalid. Objects are compared by identity; numbers and
strings are kept alive, so that an identity is not used twice, while modules and weights are not.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from whyformer._model.unwrap import unwrap

ATOMS = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)
COMPARED_BY_CONTENT = ("_parameters", "_buffers", "_modules")


class ModelState:
    """A snapshot of a model. `matches` is cheap: about a microsecond for each module."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = read_modules(module)
        self.weights = read_weights(module)
        self.config = read_config(module)
        self.atoms = [value for part in unwrap(module).modules() for value in vars(part).values() if is_atom(value)]

    def matches(self, module: nn.Module) -> bool:
        return (
            read_weights(module) == self.weights
            and read_modules(module) == self.modules
            and read_config(module) == self.config
        )


def is_atom(value: Any) -> bool:
    return isinstance(value, ATOMS) or (isinstance(value, tuple) and all(is_atom(item) for item in value))


def read_modules(module: nn.Module) -> list[Any]:
    found: list[Any] = []
    for part in unwrap(module).modules():
        own = part.__dict__
        found.append(id(part))
        found.append(id(type(part).forward))
        found.extend(map(id, own.values()))
        for name in COMPARED_BY_CONTENT:
            found.extend(map(id, own[name].values()))
    return found


def read_weights(module: nn.Module) -> list[Any]:
    return [
        (weight.data_ptr(), weight.shape, weight.stride(), 0 if weight.is_inference() else weight._version)
        for weight in iterate_weights(module)
    ]


def iterate_weights(module: nn.Module) -> Iterator[Tensor]:
    inner = unwrap(module)
    yield from inner.parameters()
    yield from inner.buffers()


def read_config(module: nn.Module) -> dict[str, Any]:
    """What the configuration of a Hugging Face model holds."""
    config = getattr(unwrap(module), "config", None)
    own = vars(config) if hasattr(config, "__dict__") else {}
    return {name: value.copy() if isinstance(value, dict | list) else value for name, value in own.items()}


def has_hooks(module: nn.Module) -> bool:
    """A forward hook, or a function in place of `forward`, may do what no program repeats."""
    if nn.modules.module._has_any_global_hook():
        return True
    owns = (part.__dict__ for part in unwrap(module).modules())
    return any(own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own for own in owns)


def read_torch_state() -> tuple[Any, ...]:
    """The settings of torch that decide which kernel runs, or in which precision."""
    cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled,
    )


def is_torch_watched() -> bool:
    """Anomaly detection is on, or another mode sees the operations."""
    return (
        torch.is_anomaly_enabled()
        or bool(_get_current_function_mode_stack())
        or bool(_get_current_dispatch_mode_stack())
    )
