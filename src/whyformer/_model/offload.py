"""Models that accelerate places: weights on several devices (`device_map`), in memory or on disk (offload).

accelerate replaces the forward of a module by one that calls `module._hf_hook`: before the forward the hook moves the
inputs to the device of the module and loads offloaded weights into it, afterwards it removes them again. The hook gets
the module as an argument, so a copy of it acts on a shadow as it does on the model.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from whyformer._model.unwrap import list_modules
from whyformer._plain.private_torch import parameters_of

if TYPE_CHECKING:
    from accelerate.hooks import ModelHook


def copy_hook(hook: "ModelHook", maps: dict[int, dict[int, dict[str, Tensor]]]) -> "ModelHook":
    """A hook with a state of its own: it keeps the device of the last input and a table of loaded weights.

    maps: the copies of these tables, which the hooks of one model share.
    """
    copied = copy.copy(hook)
    if hasattr(hook, "hooks"):  # a SequentialHook
        copied.hooks = tuple(copy_hook(each, maps) for each in hook.hooks)
    tied = getattr(hook, "tied_params_map", None)
    if tied is not None:
        # The tables of the model may hold its own weights; the shadow loads its own.
        copied.tied_params_map = maps.setdefault(id(tied), {pointer: {} for pointer in tied})
    return copied


@dataclass(frozen=True)
class ChangedWeights(Mapping[str, Tensor]):
    """Offloaded weights, each changed when it is loaded."""

    weights: Mapping[str, Tensor]
    change: Callable[[Tensor], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.change(self.weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def change_weights(shadow: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change every floating-point parameter of a shadow; offloaded ones when they are loaded, quantised ones not."""

    def change_if_floating(weight: Tensor) -> Tensor:
        is_plain = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
        return change(weight) if is_plain else weight

    for weight in shadow.parameters():
        values = weight.data
        if not weight.is_meta and (changed := change_if_floating(values)) is not values:
            weight.data = changed
    for part in shadow.modules():
        for hook in _list_hooks(part):
            if getattr(hook, "weights_map", None) is not None:
                hook.weights_map = ChangedWeights(hook.weights_map, change_if_floating)


@dataclass(frozen=True)
class OffloadedWeight:
    """A weight that a hook loads into a module before it runs and removes afterwards."""

    owner: nn.Module
    name: str
    load: Callable[[], Tensor]  # knows nothing of the owner

    @property
    def present(self) -> Tensor | None:
        """The weight, while it is loaded."""
        weight = parameters_of(self.owner)[self.name]
        return None if weight is None or weight.is_meta else weight


def list_offloaded(parts: Iterable[nn.Module]) -> list[OffloadedWeight]:
    """The weights of these modules that are loaded when they are used."""
    found = []
    for part in parts:
        for hook in _list_hooks(part) if "_hf_hook" in part.__dict__ else ():
            if not getattr(hook, "offload", False) or getattr(hook, "weights_map", None) is None:
                continue
            for key, _ in part.named_parameters(recurse=_places_submodules(hook)):
                path, _, name = key.rpartition(".")
                load = partial(hook.weights_map.__getitem__, key)
                found.append(OffloadedWeight(part.get_submodule(path), name, load))
    return found


def find_unloaded_weights(module: nn.Module) -> list[str]:
    """The names of weights on the meta device that no hook loads before they are used."""
    loaded = {
        id(weight)
        for part in module.modules()
        if any(getattr(hook, "offload", False) for hook in _list_hooks(part))
        for name in ("parameters", "buffers")
        for weight in getattr(part, name)(recurse=any(_places_submodules(hook) for hook in _list_hooks(part)))
    }
    named = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, weight in named if weight.is_meta and id(weight) not in loaded]


def find_device(module: nn.Module) -> torch.device:
    """The device that the inputs of this module belong on."""
    for hook in (hook for part in list_modules(module) if "_hf_hook" in part.__dict__ for hook in _list_hooks(part)):
        if (device := getattr(hook, "execution_device", None)) is not None:
            return torch.device(device)
    return next((weight.device for weight in module.parameters()), torch.device("cpu"))


def _list_hooks(module: nn.Module) -> "list[ModelHook]":
    hook = getattr(module, "_hf_hook", None)
    return list(getattr(hook, "hooks", [hook])) if hook is not None else []


def _places_submodules(hook: "ModelHook") -> bool:
    return bool(getattr(hook, "place_submodules", False))
