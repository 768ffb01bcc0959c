"""Public signatures: real types, no Any, nothing private that a caller would have to make."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator

import pytest

import whyformer as why

PUBLIC = [name for name in why.__all__ if callable(getattr(why, name))]


def list_signatures(name: str) -> Iterator[tuple[str, inspect.Signature]]:
    """The function itself; of a class, its constructor, methods and properties without an underscore."""
    value = getattr(why, name)
    if not isinstance(value, type):
        yield name, read_signature(value)
        return
    if "__init__" in vars(value):
        yield name, read_signature(value.__init__)
    for member, attribute in vars(value).items():
        if member.startswith("_"):
            continue
        function = getattr(attribute, "fget", None) or getattr(attribute, "func", None) or attribute
        function = getattr(function, "__func__", function)
        if isinstance(function, types.FunctionType):
            yield f"{name}.{member}", read_signature(function)


def read_signature(function: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(function, eval_str=False)


def list_annotations(signature: inspect.Signature) -> Iterator[tuple[str, object]]:
    for parameter in signature.parameters.values():
        if parameter.annotation is not inspect.Parameter.empty:
            yield parameter.name, parameter.annotation
    if signature.return_annotation is not inspect.Signature.empty:
        yield "return", signature.return_annotation


def mentions_any(annotation: object) -> bool:
    if isinstance(annotation, str):
        return "Any" in annotation.replace("[", " ").replace("]", " ").replace(",", " ").split()
    if isinstance(annotation, list | tuple):
        return any(mentions_any(part) for part in annotation)
    return annotation is typing.Any or any(mentions_any(part) for part in typing.get_args(annotation))


@pytest.mark.parametrize("name", PUBLIC)
def test_no_public_signature_has_any(name):
    found = [
        f"{where}({parameter})"
        for where, signature in list_signatures(name)
        for parameter, annotation in list_annotations(signature)
        if mentions_any(annotation)
    ]
    assert found == []
