"""Modules whose forward() takes one dictionary of inputs, as many training loops pass their batches."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_origin

from torch import nn

METHODS = frozenset(("get", "items", "keys", "pop", "values"))  # of dictionaries


def takes_dictionary(module: nn.Module) -> bool:
    """Whether forward() has one parameter, which its annotation or its code says is a dictionary."""
    return "forward" not in vars(module) and reads_dictionary(type(module))  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def reads_dictionary(kind: type[nn.Module]) -> bool:
    _, *parameters = inspect.signature(kind.forward).parameters.values()
    if len(parameters) != 1 or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return False
    return is_mapping(parameters[0].annotation) or reads_keys(kind, parameters[0].name)


def is_mapping(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2].lower() in ("dict", "mapping", "batchencoding")
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, Mapping)


def reads_keys(kind: type[nn.Module], name: str) -> bool:
    """Whether the code looks up a key in this argument, calls a method of dictionaries, or spreads it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind.forward)))
    except (OSError, TypeError, SyntaxError):  # written where no file keeps it
        return False
    return any(reads_as_dictionary(node, name) for node in ast.walk(tree))


def reads_as_dictionary(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg is None and is_name(node.value, name)
    if isinstance(node, ast.Attribute):
        return node.attr in METHODS and is_name(node.value, name)
    is_key = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return is_key and isinstance(node.slice.value, str) and is_name(node.value, name)  # type: ignore[attr-defined]


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
