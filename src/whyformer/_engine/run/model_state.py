"""What a recorded program of a model depends on besides its inputs, compared before every use.

A snapshot has, for every module, its identity and class, what it keeps (submodules, weights, settings) and whether it
trains; for every weight its memory, shape and version; the code of its classes: their attributes and the globals of the
files that define them, where somebody may have replaced a function, and all that their forward uses in other files
(model_code.py); and the configurations. Anything that differs makes the programs of the model invalid. Objects are
compared by identity; numbers, strings and functions are kept alive, so that an identity is not used twice, while
modules and weights are not. The settings of torch that choose how a product is computed are part of the key of each
program.
"""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from operator import itemgetter
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.run.model_code import KNOWN_CODE, WatchedCode, are_known, is_of_libraries, is_same_code
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
read_hooks = itemgetter(*FORWARD_HOOKS[:2], *BACKWARD_HOOKS)  # the other registries say how to call these
# Where a module keeps what is read apart: weights, submodules and hooks.
OWN_PLACES = {name for name, value in vars(nn.Module()).items() if type(value) is not bool}


class ModelState:
    """A snapshot of a model, read in one walk over its modules: about two microseconds for each.

    like: an earlier snapshot, which knows in which settings to look.
    """

    def __init__(self, module: nn.Module, like: "ModelState | None" = None) -> None:
        self.has_hooks, self.trains = has_global_hooks(), False
        self.is_known = False  # found out when the snapshot is stored
        self.equal_to: ModelState | None = None  # that it was compared with
        self.identities: list[int] = []
        self.weights: list[Tensor] = []
        parts, configs = self.walk(unwrap(module))
        is_alike = like is not None and like.identities == self.identities
        if like is None or not is_alike:
            self.kinds = frozenset(map(type, parts))
            self.containers, self.watched = find_containers(parts), find_watched_code(self.kinds)
        else:
            self.identities, self.kinds = like.identities, like.kinds
            self.containers, self.watched = like.containers, like.watched
        self.numbers: list[int] = []  # the identities of settings, and of what classes and files call their code
        for number, name in self.containers:
            self.numbers += map(id, list_kept_values(parts[number].__dict__[name]))
        for names in find_code(self.kinds):
            self.numbers += map(id, list_code(names))
        self.memory = [(id(weight), weight.data_ptr(), weight.shape, weight.stride()) for weight in self.weights]
        self.versions = self.read_versions()
        self.configs = [read_config(config) for config in {id(c): c for c in configs}.values()]
        self.running = self.watched.read()

    def walk(self, inner: nn.Module) -> tuple[list[nn.Module], list[Any]]:
        """The modules and their configurations; notes the identities of all they keep, weights, and hooks."""
        parts: list[nn.Module] = []
        configs: list[Any] = []
        identities: list[int] = []
        weights: list[Tensor | None] = []
        seen, waiting = {id(inner)}, [inner]
        while waiting:
            part = waiting.pop()
            own = part.__dict__
            parts.append(part)
            identities += map(id, own.values())
            if any(read_hooks(own)) or "forward" in own:
                self.has_hooks = True
            if own["training"]:
                self.trains = True
            if "config" in own:
                configs.append(own["config"])
            if own[PARAMETERS]:
                weights += own[PARAMETERS].values()
            if own[BUFFERS]:
                weights += own[BUFFERS].values()
            if own[CHILDREN]:
                for child in own[CHILDREN].values():
                    if child is not None and id(child) not in seen:
                        seen.add(id(child))
                        waiting.append(child)
        self.identities = [*map(id, parts), *map(id, map(type, parts)), *identities]
        self.weights = [weight for weight in weights if weight is not None]
        return parts, configs

    def read_versions(self) -> list[int]:
        return [0 if weight.is_inference() else writes_of(weight) for weight in self.weights]

    def is_same(self, other: "ModelState") -> bool:
        if self in (other, other.equal_to):  # a snapshot does not change
            return True
        is_same = (
            self.memory == other.memory
            and self.versions == other.versions
            and self.has_hooks == other.has_hooks
            and self.has_same_code(other)
        )
        other.equal_to = self if is_same else None
        return is_same

    def has_same_code(self, other: "ModelState") -> bool:
        """Whether the model computes in the same way; its weights may be others."""
        return (
            (self.identities is other.identities or self.identities == other.identities)
            and self.numbers == other.numbers
            and self.configs == other.configs
            and self.watched is other.watched
            and is_same_code(self.running, other.running)
        )

    def keep(self, module: nn.Module) -> "ModelState":
        """For storing: without the weights, but with the numbers and strings that identities belong to."""
        parts = list_modules(unwrap(module))
        code = find_code(self.kinds)
        settings = [vars(part)[name] for part in parts for _, name in find_containers([part])]
        kept = [value for names in (*map(vars, parts), *settings, *code) for value in list_kept_values(names)]
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


def list_kept_values(container: Any) -> Iterable[Any]:
    """What a list, a dictionary, a file or an object keeps."""
    if isinstance(container, list):
        return container
    return list(container.values() if isinstance(container, Mapping) else vars(container).values())


@cache
def find_code(kinds: frozenset[type]) -> list[Mapping[str, Any]]:
    """The names that classes of modules and the files they are defined in give to their code."""
    classes = {base for kind in kinds for base in kind.__mro__ if base not in nn.Module.__mro__}
    defined_in = sorted({"torch.nn.functional", *(one.__module__ for one in classes)})
    files = [sys.modules[name] for name in defined_in if name in sys.modules]
    ordered = sorted(classes, key=lambda one: (one.__module__, one.__qualname__))
    owners = (*ordered, nn.Module, Tensor, *files)
    for one in owners:
        with suppress(Exception):  # of a name that cannot be resolved
            one.__annotations__  # noqa: B018  # kept from the first look on, which is no change
    return [vars(one) for one in owners]


def list_code(names: Mapping[str, Any]) -> Iterable[Any]:
    """What a class or a file names; of one's own file only functions and classes: a script counts and keeps results
    beside its model. What else its code uses is compared by name (model_code.py)."""
    file = names.get("__name__") if isinstance(names, dict) else None
    if file is None or str(file).partition(".")[0] in KNOWN_CODE:
        return names.values()
    return [value for value in names.values() if isinstance(value, REPLACEABLE)]


def is_atom(value: Any) -> bool:
    return isinstance(value, ATOMS) or (isinstance(value, tuple) and all(is_atom(item) for item in value))


def read_config(config: Any) -> dict[str, Any]:
    """What the configuration of a Hugging Face model holds."""
    own = vars(config) if hasattr(config, "__dict__") else {}
    return {name: value.copy() if isinstance(value, dict | list) else value for name, value in own.items()}


def is_torch_watched() -> bool:
    """Anomaly detection is on, or another mode sees the operations."""
    return torch.is_anomaly_enabled() or bool(list_function_modes()) or bool(list_dispatch_modes())
