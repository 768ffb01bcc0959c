"""A twin of a model that can be hooked and run without touching the model.

The twin has module objects of its own (shared submodules stay shared), the same weights as detached views that ask
for no gradient, its own hook dictionaries and `training = False`. Whatever happens to it, also an exception, the
user's modules do not notice, and threads never meet.

A forward hook of the user's is part of what the model computes (weight norm is one), so the twin keeps those; backward
hooks would put foreign nodes into the graph and are left behind.
"""

import types
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._model.unwrap import unwrap


def make_shadow(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A twin of `module`; with `dtype`, floating-point weights are copied to that type."""
    parts = list(unwrap(module).modules())
    originals = [part for part in parts if unwrap(part) is part]
    twins = {id(original): _create_empty(original) for original in originals}
    twins |= {id(part): twins[id(unwrap(part))] for part in parts}  # wrapped parts are looked through as well
    weights: dict[int, Tensor] = {}
    for original in originals:
        _fill(twins[id(original)], original, twins, weights, dtype)
    return twins[id(originals[0])]


def _create_empty(original: nn.Module) -> nn.Module:
    if isinstance(original, torch.jit.ScriptModule):
        unwrap(original)
    return type(original).__new__(type(original))


def _fill(
    twin: nn.Module,
    original: nn.Module,
    twins: dict[int, nn.Module],
    weights: dict[int, Tensor],
    dtype: torch.dtype | None,
) -> None:
    own = {name: _redirect(value, twins) for name, value in original.__dict__.items()}
    own["_parameters"] = {name: _detach_weight(value, weights, dtype) for name, value in original._parameters.items()}
    own["_buffers"] = {name: _detach_weight(value, weights, dtype) for name, value in original._buffers.items()}
    own["_modules"] = {
        name: twins[id(child)] if child is not None else None for name, child in original._modules.items()
    }
    for name, value in own.items():
        if name.endswith("_hooks") and isinstance(value, dict):
            own[name] = type(value)()
    for kept in (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
    ):
        if kept in original.__dict__:
            own[kept] = original.__dict__[kept].copy()
    own["training"] = False
    own["_compiled_call_impl"] = None
    twin.__dict__.update(own)


def _detach_weight(value: Tensor | None, weights: dict[int, Tensor], dtype: torch.dtype | None) -> Tensor | None:
    """The detached view of a weight; the same one wherever the weight is shared."""
    if value is None:
        return None
    if id(value) not in weights:
        view = value.detach()
        if dtype is not None and view.is_floating_point():
            view = view.to(dtype)
        is_parameter = isinstance(value, nn.Parameter)
        weights[id(value)] = nn.Parameter(view, requires_grad=False) if is_parameter else view
    return weights[id(value)]


def _redirect(value: Any, twins: dict[int, nn.Module]) -> Any:
    """Point what a module keeps outside `_modules` (bound methods, lists of modules) at the twins."""
    if isinstance(value, nn.Module):
        return twins.get(id(value), value)
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach()  # a weight that was not registered
    if isinstance(value, types.MethodType) and id(value.__self__) in twins:
        return types.MethodType(value.__func__, twins[id(value.__self__)])
    if type(value) in (list, tuple):
        return type(value)(_redirect(item, twins) for item in value)
    if type(value) is dict:
        return {name: _redirect(item, twins) for name, item in value.items()}
    return value


def weights_of(module: nn.Module) -> dict[int, str]:
    """The identity of every weight of the original, to notice when a run reaches one of them."""
    return {id(weight): name for name, weight in module.named_parameters(remove_duplicate=False)}
