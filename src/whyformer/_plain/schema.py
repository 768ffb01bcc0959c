"""Schemas: what the values in a saved file must look like, checked before anything is built from them.

A schema is a type (`str`, `bool`, `int`, `float`: any finite number), None, a tuple of alternatives, `[schema]` for a
list, `{str: schema}` for an object with any names, or `{"name": schema, ...}` for an object that has at least these
fields; `object` is anything.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

MAX_INTEGER = 2**63


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
