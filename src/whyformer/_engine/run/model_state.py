"""What a recorded program of a model depends on besides its inputs, compared before every use.

A snapshot has, for every module, its identity and class, what it keeps (submodules, weights, settings) and whether it
trains; for every weight its memory, shape and version; the code of its classes: their attributes and the globals of the
files that define them, where somebody may have replaced a function, and all that their forward uses in other files
(watched_code.py); and the configurations. Anything that differs makes the programs of the model invalid. Objects are
compared by identity; numbers, strings and functions are kept alive, so that an identity is not used twice, while
modules and weights are not. The settings of torch that choose how a product is computed are part of the key of each
program.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.run.known_code import are_known, is_of_libraries
from whyformer._engine.run.watched_code import WatchedCode, is_same_code
from whyformer._model import list_modules, unwrap
from whyformer._plain.private_torch import (
    BACKWARD_HOOKS,
    BUFFERS,
    CHILDREN,
    FORWARD_HOOKS,
    PARAMETERS,
    has_global_hooks,
    list_dispatch_modes,
    list_function_modes,
    writes_of,
)

CONTAINERS = {dict, list}  # what a module keeps in these is compared too
REPLACEABLE = (FunctionType, MethodType, type)
ATOMS = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)
HOOKS = (*FORWARD_HOOKS, *BACKWARD_HOOKS)
# Where a module keeps what is read apart: weights, submodules and hooks.
OWN_PLACES = {name for name, value in vars(nn.Module()).items() if type(value) is not bool}


class ModelState:
    """A snapshot of a model, read in one walk over its modules: about two microseconds for each.

    like: an earlier snapshot, which knows in which settings to look.
    """

    def __init__(self, module: nn.Module, like: "ModelState | None" = None) -> None:
        inner = unwrap(module)
        parts, configs = self.walk(inner)
        kinds = list(map(type, parts))
        self.identities += map(id, kinds)
        self.kinds = frozenset(kinds)
        is_alike = like is not None and like.kinds == self.kinds and like.identities == self.identities
        self.containers: list[tuple[int, str]] = like.containers if like and is_alike else find_containers(parts)
        self.contents = list_contents(parts, self.containers)
        self.count_settings = len(self.contents)
        weights: list[Tensor | None] = []
        for part in parts:
            own = part.__dict__
            if own[PARAMETERS]:
                weights.extend(own[PARAMETERS].values())
            if own[BUFFERS]:
                weights.extend(own[BUFFERS].values())
        self.weights: list[Tensor] = [weight for weight in weights if weight is not None]
        self.contents += map(id, self.weights)
        self.memory = [(weight.data_ptr(), weight.shape, weight.stride()) for weight in self.weights]
        self.versions = self.read_versions()
        self.configs = [read_config(config) for config in {id(c): c for c in configs}.values()]
        self.code = [number for names in find_code(self.kinds) for number in map(id, names.values())]
        self.watched: WatchedCode = like.watched if like and is_alike else find_watched_code(self.kinds)
        self.running = self.watched.read()

    def walk(self, inner: nn.Module) -> tuple[list[nn.Module], list[Any]]:
        """The modules and their configurations; notes the identities of all they keep, and whether there are hooks."""
        parts: list[nn.Module] = []
        configs: list[Any] = []
        self.identities: list[int] = []
        self.has_hooks = has_global_hooks()
        self.trains = False
        self.is_known = False  # found out when the snapshot is stored
        seen, waiting = {id(inner)}, [inner]
        while waiting:
            part = waiting.pop()
            own = part.__dict__
            parts.append(part)
            self.identities.append(id(part))
            self.identities += map(id, own.values())
            if any(map(own.get, HOOKS)) or "forward" in own:
                self.has_hooks = True
            if own["training"]:
                self.trains = True
            if "config" in own:
                configs.append(own["config"])
            if own[CHILDREN]:
                for child in own[CHILDREN].values():
                    if child is not None and id(child) not in seen:
                        seen.add(id(child))
                        waiting.append(child)
        return parts, configs

    def read_versions(self) -> list[int]:
        return [0 if weight.is_inference() else writes_of(weight) for weight in self.weights]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ModelState):
            return NotImplemented
        return (
            self.identities == other.identities
            and self.kinds == other.kinds
            and self.contents == other.contents
            and self.memory == other.memory
            and self.versions == other.versions
            and self.has_hooks == other.has_hooks
            and self.configs == other.configs
            and self.code == other.code
            and self.watched is other.watched
            and is_same_code(self.running, other.running)
        )

    def has_same_code(self, other: "ModelState") -> bool:
        """Whether the model computes in the same way; its weights may be others."""
        return (
            self.identities == other.identities
            and self.contents[: self.count_settings] == other.contents[: other.count_settings]
            and self.configs == other.configs
            and self.code == other.code
            and self.watched is other.watched
            and is_same_code(self.running, other.running)
        )

    __hash__ = None  # type: ignore[assignment]

    def keep(self, module: nn.Module) -> "ModelState":
        """For storing: without the weights, but with the numbers and strings that identities belong to."""
        parts = list_modules(unwrap(module))
        code = find_code(self.kinds)
        settings = [vars(part)[name] for part in parts for _, name in find_containers([part])]
        kept = [value for names in (*map(vars, parts), *settings, *code) for value in list_values(names)]
        self.atoms = [value for value in kept if is_atom(value) or isinstance(value, REPLACEABLE)]
        self.weights = []
        self.is_known = not self.trains and is_of_libraries(parts, code) and are_known(self.watched.direct)
        return self


WATCHED: dict[frozenset[type], WatchedCode] = {}


def find_watched_code(kinds: frozenset[type]) -> WatchedCode:
    """What these classes of modules run, followed anew if something was replaced."""
    found = WATCHED.get(kinds)
    if found is None or found.has_changed:
        found = WATCHED[kinds] = WatchedCode(kinds)
    return found


def find_containers(parts: Iterable[nn.Module]) -> list[tuple[int, str]]:
    """The lists and dictionaries among the settings of each module: its number, and their name."""
    return [
        (number, name)
        for number, part in enumerate(parts)
        for name, value in part.__dict__.items()
        if name not in OWN_PLACES and (type(value) in CONTAINERS or is_plain_object(value))
    ]


def is_plain_object(value: Any) -> bool:
    """An object of a user's class that keeps settings, such as a SimpleNamespace."""
    if isinstance(value, Tensor | nn.Module | type) or callable(value) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in ("torch", "transformers")


def list_values(container: Any) -> Iterable[Any]:
    """What a list, a dictionary, a file or an object keeps."""
    if isinstance(container, list):
        return container
    return list(container.values() if isinstance(container, Mapping) else vars(container).values())


def list_contents(parts: list[nn.Module], containers: list[tuple[int, str]]) -> list[int]:
    """The identities of what is in these settings."""
    found: list[int] = []
    for number, name in containers:
        found += map(id, list_values(parts[number].__dict__[name]))
    return found


@cache
def find_code(kinds: frozenset[type]) -> list[Mapping[str, Any]]:
    """The names that classes of modules and the files they are defined in give to their code."""
    classes = {base for kind in kinds for base in kind.__mro__ if base not in nn.Module.__mro__}
    defined_in = sorted({"torch.nn.functional", *(one.__module__ for one in classes)})
    files = [sys.modules[name] for name in defined_in if name in sys.modules]
    ordered = sorted(classes, key=lambda one: (one.__module__, one.__qualname__))
    return [vars(one) for one in (*ordered, nn.Module, Tensor, *files)]


def is_atom(value: Any) -> bool:
    return isinstance(value, ATOMS) or (isinstance(value, tuple) and all(is_atom(item) for item in value))


def read_config(config: Any) -> dict[str, Any]:
    """What the configuration of a Hugging Face model holds."""
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
    return torch.is_anomaly_enabled() or bool(list_function_modes()) or bool(list_dispatch_modes())
