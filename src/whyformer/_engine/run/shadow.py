"""A shadow: a copy of a model that shares its weights and can be hooked and run without touching the model.

The shadow has its own module objects (shared submodules stay shared), the same weights as detached views without
gradients (copies, if the weights were made in inference mode: those cannot be part of a graph), its own hook
dictionaries and `training = False`. Nothing that happens to it, including exceptions, affects
the user's modules or other threads. Layers that are rewritten by their own forward are replaced, and what they keep is
copied (quantised.py). If the forward writes into buffers, the shadow has copies of them (model_writes.py).

Forward hooks of the user are part of what the model computes (weight norm is one), so the shadow keeps them. Backward
hooks would add unknown nodes to the graph and are not copied.
"""

import copy
import functools
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.run.model_memory import OF_MODEL, learnt
from whyformer._engine.run.quantised import RestoredLinear, choose_shadow_class, find_codes, is_rewritten
from whyformer._engine.run.unseen_functions import call_originals, find_scripting_methods
from whyformer._model import copy_hook, takes_dictionary, unwrap_parts
from whyformer._plain.private_torch import (
    BUFFERS,
    CHILDREN,
    COMPILED_CALL,
    FORWARD_HOOKS,
    PARAMETERS,
    buffers_of,
)
from whyformer._plain.torch_state import leave_inference

REGISTRIES = frozenset((PARAMETERS, BUFFERS, CHILDREN, *FORWARD_HOOKS, OF_MODEL))  # the shadow gets its own
ATOMS = frozenset((bool, int, float, str, type(None), set, torch.dtype, torch.device))  # point at no module


def make_shadow(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A shadow of `module`; with `dtype`, floating-point weights are copied to that type."""
    inner = unwrap_parts(module)
    originals = [part for number, part in inner.items() if id(part) == number]
    kinds = [choose_shadow_class(original) for original in originals]
    shadows: dict[int, Any] = {id(one): kind.__new__(kind) for one, kind in zip(originals, kinds, strict=True)}
    shadows |= {number: shadows[id(part)] for number, part in inner.items()}  # wrapped parts are unwrapped too
    weights: dict[int, Tensor] = {}
    tied: dict[int, dict[Any, Any]] = {}
    for original in originals:
        _fill(shadows[id(original)], original, shadows, weights, dtype)
        if original.__dict__.get("_hf_hook") is not None:  # of accelerate
            shadows[id(original)]._hf_hook = copy_hook(original._hf_hook, tied)  # type: ignore[assignment]
    own = learnt(originals[0])
    if own.writes:
        _copy_kept_tensors([shadows[id(original)] for original in originals])
    made: nn.Module = shadows[id(originals[0])]
    made.__dict__[OF_MODEL] = own
    if not hasattr(made, "main_input_name") and takes_dictionary(originals[0]):
        run = made.forward
        made.__dict__["forward"] = lambda **inputs: run(inputs)
    return made


def _copy_kept_tensors(shadows: Iterable[nn.Module]) -> None:
    """Give the shadows buffers of their own, shared among them as the model's are."""
    copies: dict[int, Tensor] = {}
    shared: list[Tensor] = []  # kept alive, so that no two of them have one id
    for shadow in shadows:
        for kept in (buffers_of(shadow), shadow.__dict__):
            for name, value in list(kept.items()):
                if isinstance(value, Tensor):
                    shared.append(value)
                    kept[name] = copies.setdefault(id(value), value.clone())


def _fill(
    shadow: nn.Module,
    original: nn.Module,
    shadows: dict[int, Any],
    weights: dict[int, Tensor],
    dtype: torch.dtype | None,
) -> None:
    own: dict[str, Any] = {}
    for name, value in original.__dict__.items():
        if name not in REGISTRIES and type(value) not in ATOMS:
            is_hooks = name.endswith("_hooks") and isinstance(value, dict)
            value = type(value)() if is_hooks else _redirect(value, shadows)
        own[name] = value
    for table in (PARAMETERS, BUFFERS):
        tensors = original.__dict__[table].items()
        own[table] = {name: _detach_weight(value, weights, dtype, shadows) for name, value in tensors}
    children = original.__dict__[CHILDREN].items()
    own[CHILDREN] = {name: shadows[id(child)] if child is not None else None for name, child in children}
    own |= {table: own[table].copy() for table in FORWARD_HOOKS if table in own}
    own["training"] = False
    own[COMPILED_CALL] = None
    if isinstance(shadow, RestoredLinear):
        own["codes"] = find_codes(original)
    shadow.__dict__.update(own)
    if isinstance(shadow, nn.Embedding | nn.EmbeddingBag) and shadow.max_norm is not None:
        limit_rows(shadow)
    if methods := find_scripting_methods(type(original)):  # type: ignore[arg-type]
        call_originals(shadow, methods)


def limit_rows(table: nn.Embedding | nn.EmbeddingBag) -> None:
    """Give a table of a largest norm rows that keep to it, in a copy: it would write them into the model's weights."""
    assert table.max_norm is not None
    rows = torch.renorm(table.weight, table.norm_type, 0, table.max_norm)
    table.__dict__[PARAMETERS]["weight"] = nn.Parameter(rows, requires_grad=False)
    table.max_norm = None


def _detach_weight(
    value: Tensor | None, weights: dict[int, Tensor], dtype: torch.dtype | None, shadows: dict[int, Any]
) -> Tensor | None:
    """The detached view of a weight; shared weights share it."""
    if value is None:
        return None
    if id(value) not in weights:
        view = (leave_inference(value) if value.is_inference() else value).detach()
        view = view.to(dtype) if dtype is not None and view.is_floating_point() else view
        if type(value) is not nn.Parameter and is_rewritten(value):
            view = view.as_subclass(type(value))
            view.__dict__.update({name: _redirect(kept, shadows) for name, kept in value.__dict__.items()})
        elif isinstance(value, nn.Parameter):
            view = nn.Parameter(view, requires_grad=False)
        weights[id(value)] = view
    return weights[id(value)]


def _redirect(value: Any, shadows: dict[int, Any]) -> Any:
    """Point what a module keeps outside `_modules` (bound methods, lists of modules, objects) at the shadows."""
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
    return _copy_object(value, shadows) if has_state(value) else value


def has_state(value: Any) -> bool:
    """An object with attributes that a forward might set (a cache, a quantisation state); not a config."""
    if not hasattr(value, "__dict__") or isinstance(value, Tensor | type) or callable(value):
        return False
    kind, library = type(value), type(value).__module__.partition(".")[0]
    return library not in ("torch", "enum", "builtins") and not kind.__name__.endswith("Config")


def _copy_object(value: Any, shadows: dict[int, Any]) -> Any:
    """A copy of the object with copies of its lists, dicts and objects; the object itself if it cannot be copied."""
    if id(value) not in shadows:
        try:
            shadows[id(value)] = copied = copy.copy(value)
            if copied is not value:
                vars(copied).update({name: _redirect(item, shadows) for name, item in vars(value).items()})
        except Exception:  # a lock, a file: whatever the class raises
            shadows[id(value)] = value
    return shadows[id(value)]


def weights_of(module: nn.Module) -> dict[int, str]:
    """The id and name of every weight of the original, to detect a run that reaches one of them."""
    return {id(weight): name for name, weight in module.named_parameters(remove_duplicate=False)}
