"""Schemas: what the values in a saved file must look like, checked before anything is built from them.

A schema is a type (`str`, `bool`, `int`, `float`: any finite number), a `Literal`, None, a tuple of alternatives,
`[schema]` for a list, `{str: schema}` for an object with any names, or `{"name": schema, ...}` for an object that has
at least these fields; `object` is anything. describe_schema() reads it off a dataclass, and restore() builds that.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

MAX_INTEGER = 2**63
NOT_SAVED = {"saved": False}  # metadata of a field that is not in files


class SchemaError(ValueError):
    """A value does not match its schema."""


def check_schema(value: Any, schema: Any, name: str) -> None:
    """Refuse a value that does not match its schema, by its name in the file."""
    if (problem := next(find_mismatches(value, schema, name), None)) is not None:
        raise SchemaError(problem)


def find_mismatches(value: Any, schema: Any, name: str) -> Iterator[str]:
    """What does not match, in order. A value is shown if it is short, else its type: a file may hold anything."""
    is_short = value is None or isinstance(value, bool | float)
    wrong = f"{name} is {value!r}" if is_short else f"{name} is a {type(value).__name__}"
    if isinstance(schema, tuple):
        if all(any(find_mismatches(value, one, name)) for one in schema):
            yield wrong
    elif isinstance(schema, list):
        if not isinstance(value, list | tuple):
            yield f"{wrong}, not a list"
            return
        for index, item in enumerate(value):
            yield from find_mismatches(item, schema[0], f"{name}[{index}]")
    elif isinstance(schema, Mapping):
        if not isinstance(value, Mapping):
            yield f"{wrong}, not an object"
            return
        if str in schema:
            for key, inner in value.items():
                yield from find_mismatches(key, str, f"a name in {name}")
                yield from find_mismatches(inner, schema[str], f"{name} {key[:40]!r}")
            return
        for key, own in schema.items():
            yield from find_mismatches(value[key], own, f"{name} {key}") if key in value else [f"{name} has no {key}"]
    elif get_origin(schema) is Literal:
        if value not in get_args(schema):
            yield wrong
    elif not is_of_type(value, schema):
        yield wrong


def is_of_type(value: Any, wanted: type | None) -> bool:
    if wanted is None:
        return value is None
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER
    if wanted is float:
        return isinstance(value, float) and math.isfinite(value) if not is_of_type(value, int) else True
    return isinstance(value, wanted)


# --- dataclasses ------------------------------------------------------------------------------------------------------


def list_saved_fields(cls: Any) -> list[Field[Any]]:
    return [one for one in fields(cls) if one.metadata.get("saved", True)]


def find_hints(cls: Any) -> dict[str, Any]:
    """The types of the fields; inside JSON anything is allowed."""
    return get_type_hints(cls, localns={"Json": object})


def describe_schema(hint: Any, **known: Any) -> Any:
    """The schema of a type; of a dataclass, by the types of its fields. known: the schemas of some of them."""
    if is_dataclass(hint):
        hints = find_hints(hint)
        return {one.name: known.get(one.name) or describe_schema(hints[one.name]) for one in list_saved_fields(hint)}
    kind, inner = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return tuple(None if one is NoneType else describe_schema(one) for one in inner)
    if kind is tuple:
        return [describe_schema(inner[0])]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {str: describe_schema(inner[1])}
    return hint if isinstance(hint, type) or kind is Literal else object


def restore(hint: Any, value: Any) -> Any:
    """A value that matches the schema of this type, with dataclasses and tuples in it; other names are dropped."""
    kind, inner = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if is_dataclass(hint) and not isinstance(value, hint):  # type: ignore[arg-type]
        hints = find_hints(hint)
        given = {one.name: restore(hints[one.name], value[one.name]) for one in list_saved_fields(hint)}
        return hint(**given)  # type: ignore[operator]
    if kind is UnionType:
        return restore(next(one for one in inner if one is not NoneType), value)
    if kind is tuple:
        return tuple(restore(inner[0], one) for one in value)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {name: restore(inner[1], one) for name, one in value.items()}
    return value
