"""A stand-in for a model that accelerate offloads: each layer gets its weights before it runs and loses them after.

accelerate itself is used in tests/others/test_places.py; here loads are counted.
"""

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class CountedWeights(Mapping[str, Tensor]):
    """The weights of one layer, copied at each load, and how many bytes of all copies are there."""

    def __init__(self, weights: dict[str, Tensor], count: "Loads") -> None:
        self.weights, self.count = weights, count

    def __getitem__(self, name: str) -> Tensor:
        return self.count.load(self.weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


class Loads:
    """How often weights were loaded, and the most bytes of loaded weights that were alive at once."""

    def __init__(self) -> None:
        self.total = self.count = self.most = 0
        self.alive: list[torch.multiprocessing.reductions.StorageWeakRef] = []

    def load(self, weight: Tensor) -> Tensor:
        copied = weight.clone()
        self.count += 1
        self.alive = [(one, size) for one, size in self.alive if not one.expired()]
        reference = torch.multiprocessing.reductions.StorageWeakRef(copied.untyped_storage())
        self.alive.append((reference, copied.untyped_storage().nbytes()))
        self.most = max(self.most, sum(size for _, size in self.alive))
        return copied

    @property
    def share(self) -> float:
        """The most that was there at once, of all weights."""
        return self.most / self.total

    def start_again(self) -> None:
        self.count = self.most = 0


class LoadingHook:
    """What accelerate's AlignDevicesHook does with offload=True."""

    offload, place_submodules, execution_device, tied_params_map = True, False, torch.device("cpu"), None

    def __init__(self, weights_map: Mapping[str, Tensor]) -> None:
        self.weights_map = weights_map

    def pre_forward(self, module, *args, **options):
        for name in self.weights_map:
            module._parameters[name] = nn.Parameter(self.weights_map[name], requires_grad=False)
        return args, options

    def post_forward(self, module, output):
        remove_weights(module)
        return output


def remove_weights(module: nn.Module) -> None:
    for name, weight in list(module._parameters.items()):
        if weight is not None:
            module._parameters[name] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)


def run_with_hook(module, *args, **options):
    args, options = module._hf_hook.pre_forward(module, *args, **options)
    return module._hf_hook.post_forward(module, module._old_forward(*args, **options))


def offload(model: nn.Module) -> Loads:
    """Offload every layer that has weights of its own."""
    loads = Loads()
    for module in model.modules():
        weights = {name: weight.detach() for name, weight in module._parameters.items() if weight is not None}
        if not weights:
            continue
        loads.total += sum(weight.nbytes for weight in weights.values())
        module._hf_hook, module._old_forward = LoadingHook(CountedWeights(weights, loads)), module.forward
        module.forward = functools.update_wrapper(functools.partial(run_with_hook, module), module._old_forward)
        remove_weights(module)
    return loads
