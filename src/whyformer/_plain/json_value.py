"""JSON as types: what a file holds when it was read, and what can be written into one."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, Union

from typing_extensions import TypeAliasType

Json: TypeAlias = Union[str, int, float, bool, "list[Json]", "dict[str, Json]", None]
JsonObject: TypeAlias = dict[str, Json]
JsonValue = TypeAliasType("JsonValue", "str | float | Sequence[JsonValue] | Mapping[str, JsonValue] | None")
