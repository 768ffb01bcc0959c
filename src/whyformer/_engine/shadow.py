"""A shadow: a copy of a model that shares its weights and can be hooked and run without touching the model.

The shadow has its own module objects (shared submodules stay shared), the same weights as detached views without
gradients (copies, if the weights were made in inference mode: those cannot be part of a graph), its own hook
dictionaries and `training = False`. Nothing that happens to it, including exceptions, affects
the user's modules or other threads.

Forward hooks of the user are part of what the model computes (weight norm is one), so the shadow keeps them. Backward
hooks would add unknown nodes to the graph and are not copied.
"""

import functools
import types
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._model.offload import copy_hook, has_hook
from whyformer._model.unwrap import unwrap
from whyformer._plain.torch_state import leave_inference


def make_shadow(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A shadow of `module`; with `dtype`, floating-point weights are copied to that type."""
    parts = list(unwrap(module).modules())
    originals = [part for part in parts if unwrap(part) is part]
    shadows = {id(original): _create_empty(original) for original in originals}
    shadows |= {id(part): shadows[id(unwrap(part))] for part in parts}  # wrapped parts are unwrapped too
    weights: dict[int, Tensor] = {}
    tied: dict[int, dict[Any, Any]] = {}
    for original in originals:
        _fill(shadows[id(original)], original, shadows, weights, dtype)
        if has_hook(original):
            shadows[id(original)]._hf_hook = copy_hook(original._hf_hook, tied)  # type: ignore[assignment]
    return shadows[id(originals[0])]


def _create_empty(original: nn.Module) -> nn.Module:
    if isinstance(original, torch.jit.ScriptModule):
        unwrap(original)
    return type(original).__new__(type(original))


def _fill(
    shadow: nn.Module,
    original: nn.Module,
    shadows: dict[int, nn.Module],
    weights: dict[int, Tensor],
    dtype: torch.dtype | None,
) -> None:
    own = {name: _redirect(value, shadows) for name, value in original.__dict__.items()}
    own["_parameters"] = {name: _detach_weight(value, weights, dtype) for name, value in original._parameters.items()}
    own["_buffers"] = {name: _detach_weight(value, weights, dtype) for name, value in original._buffers.items()}
    own["_modules"] = {
        name: shadows[id(child)] if child is not None else None for name, child in original._modules.items()
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
    shadow.__dict__.update(own)


def _detach_weight(value: Tensor | None, weights: dict[int, Tensor], dtype: torch.dtype | None) -> Tensor | None:
    """The detached view of a weight; shared weights share it."""
    if value is None:
        return None
    if id(value) not in weights:
        view = leave_inference(value).detach()
        if dtype is not None and view.is_floating_point():
            view = view.to(dtype)
        is_parameter = isinstance(value, nn.Parameter)
        weights[id(value)] = nn.Parameter(view, requires_grad=False) if is_parameter else view
    return weights[id(value)]


def _redirect(value: Any, shadows: dict[int, nn.Module]) -> Any:
    """Point what a module keeps outside `_modules` (bound methods, lists of modules) at the shadows."""
    if isinstance(value, nn.Module):
        return shadows.get(id(value), value)
    if isinstance(value, Tensor) and (value.requires_grad or value.is_inference()):
        return leave_inference(value).detach()  # an unregistered weight
    if isinstance(value, types.MethodType) and id(value.__self__) in shadows:
        return types.MethodType(value.__func__, shadows[id(value.__self__)])
    if type(value) is functools.partial:  # accelerate's forward
        function, args = _redirect(value.func, shadows), _redirect(value.args, shadows)
        redirected = functools.partial(function, *args, **_redirect(value.keywords, shadows))
        redirected.__dict__.update(value.__dict__)  # the signature of what it replaces
        return redirected
    if type(value) in (list, tuple):
        return type(value)(_redirect(item, shadows) for item in value)
    if type(value) is dict:
        return {name: _redirect(item, shadows) for name, item in value.items()}
    return value


def weights_of(module: nn.Module) -> dict[int, str]:
    """The id and name of every weight of the original, to detect a run that reaches one of them."""
    return {id(weight): name for name, weight in module.named_parameters(remove_duplicate=False)}
