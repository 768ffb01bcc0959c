"""Functions that `torch.jit.script` compiled, run as they are written, so that interception sees their operations.

Torch calls a scripted function past every mode, but keeps the function that it was made from. The methods of a shadow
that may call one get other globals, in which the name stands for the original; those of the module stay as they are.
"""

import types
from functools import cache
from typing import Any

import torch
from torch import nn

from whyformer._plain.private_torch import source_of_scripted


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
