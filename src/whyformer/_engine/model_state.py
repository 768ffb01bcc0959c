"""What a recorded program of a model depends on besides its inputs, compared before every use.

A snapshot has, for every module, its identity and class, what it keeps (submodules, weights, settings) and whether it
trains; for every weight its memory, shape and version; and the configuration of the model. Anything that differs makes
the programs of the model invalid. Objects are compared by identity; numbers and strings are kept alive, so that an
identity is not used twice, while modules and weights are not. The settings of torch that choose how a product is
computed are part of the key of each program.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from whyformer._model.unwrap import unwrap

CONTAINERS = {dict, list}  # what a module keeps in these is compared too
ATOMS = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)


class ModelState:
    """A snapshot of a model, read in one walk over its modules: about two microseconds for each."""

    def __init__(self, module: nn.Module) -> None:
        self.has_hooks = nn.modules.module._has_any_global_hook()
        weights: list[Tensor | None] = []
        identities: list[int] = []
        inner = unwrap(module)
        seen, waiting = {id(inner)}, [inner]
        while waiting:
            part = waiting.pop()
            own = part.__dict__
            children = own["_modules"].values()
            identities.append(id(part))
            identities.append(id(type(part).forward))
            identities.extend(map(id, own.values()))
            for value in own.values():
                if type(value) in CONTAINERS and value:
                    identities.extend(map(id, value.values() if type(value) is dict else value))
            if own["_parameters"]:
                weights.extend(own["_parameters"].values())
            if own["_buffers"]:
                weights.extend(own["_buffers"].values())
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                self.has_hooks = True
            for child in children:
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)
        self.weights: list[Tensor] = [weight for weight in weights if weight is not None]
        self.identities = identities
        self.identities += map(id, self.weights)
        self.memory = [(weight.data_ptr(), weight.shape, weight.stride()) for weight in self.weights]
        self.versions = self.read_versions()
        self.config = read_config(inner)

    def read_versions(self) -> list[int]:
        return [0 if weight.is_inference() else weight._version for weight in self.weights]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelState):
            return NotImplemented
        return (
            self.identities == other.identities
            and self.memory == other.memory
            and self.versions == other.versions
            and self.has_hooks == other.has_hooks
            and self.config == other.config
        )

    __hash__ = None  # type: ignore[assignment]

    def keep(self, module: nn.Module) -> "ModelState":
        """For storing: without the weights, but with the numbers and strings that identities belong to."""
        own = [vars(part).values() for part in unwrap(module).modules()]
        self.atoms = [value for values in own for value in values if is_atom(value)]
        self.weights = []
        return self


def is_atom(value: Any) -> bool:
    return isinstance(value, ATOMS) or (isinstance(value, tuple) and all(is_atom(item) for item in value))


def read_config(module: nn.Module) -> dict[str, Any]:
    """What the configuration of a Hugging Face model holds."""
    config = getattr(module, "config", None)
    own = vars(config) if hasattr(config, "__dict__") else {}
    return {name: value.copy() if isinstance(value, dict | list) else value for name, value in own.items()}


def read_torch_state() -> tuple[Any, ...]:
    """The settings of torch that decide which kernel runs, or in which precision."""
    cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *read_precisions(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.backends.mkldnn.enabled,
    )


def read_precisions() -> tuple[Any, ...]:
    """How products of float32 numbers are rounded. Once `fp32_precision` is set, reading the older settings raises."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    parts: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv)  # type: ignore[attr-defined]
    return tuple(part.fp32_precision for part in parts)


def rounds_to_tf32(device: torch.device) -> bool:
    """Whether products of float32 numbers on this device are computed in TF32, with 10 bits instead of 23."""
    return device.type == "cuda" and read_precisions()[0] not in ("none", "ieee")


def is_torch_watched() -> bool:
    """Anomaly detection is on, or another mode sees the operations."""
    return (
        torch.is_anomaly_enabled()
        or bool(_get_current_function_mode_stack())
        or bool(_get_current_dispatch_mode_stack())
    )
