"""Schemas: what the values in a saved file must look like, checked before anything is built from them.

A schema is a type (`str`, `bool`, `int`, `float`: any finite number), None, a tuple of alternatives, `[schema]` for a
list, `{str: schema}` for an object with any names, or `{"name": schema, ...}` for an object that has at least these
fields; `object` is anything.
"""

import math
from collections.abc import Mapping
from typing import Any

MAX_INTEGER = 2**63


class SchemaError(ValueError):
    """A value does not match its schema."""


def check_schema(value: Any, schema: Any, name: str) -> None:
    """Refuse a value that does not match its schema, by its name in the file."""
    if isinstance(schema, tuple):
        if not any(has_schema(value, one) for one in schema):
            raise SchemaError(f"{name} is {name_value_or_type(value)}")
    elif isinstance(schema, list):
        if not isinstance(value, list | tuple):
            raise SchemaError(f"{name} is {name_value_or_type(value)}, not a list")
        for place, item in enumerate(value):
            check_schema(item, schema[0], f"{name}[{place}]")
    elif isinstance(schema, dict):
        check_object(value, schema, name)
    elif not is_of_type(value, schema):
        raise SchemaError(f"{name} is {name_value_or_type(value)}")


def check_object(value: Any, schema: Mapping[Any, Any], name: str) -> None:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{name} is {name_value_or_type(value)}, not an object")
    if str in schema:
        for key, inner in value.items():
            check_schema(key, str, f"a name in {name}")
            check_schema(inner, schema[str], f"{name} {key[:40]!r}")
        return
    for key, inner in schema.items():
        if key not in value:
            raise SchemaError(f"{name} has no {key}")
        check_schema(value[key], inner, f"{name} {key}")


def has_schema(value: Any, schema: Any) -> bool:
    try:
        check_schema(value, schema, "")
    except SchemaError:
        return False
    return True


def is_of_type(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return value is None
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER
    if wanted is float:
        return isinstance(value, float) and math.isfinite(value) if not is_of_type(value, int) else True
    return isinstance(value, wanted)


def name_value_or_type(value: Any) -> str:
    """A value in an error message: itself if it is short, else its type. A file may hold anything."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    return f"a {type(value).__name__}"
