"""JsonValue: what a JSON file can hold."""

from collections.abc import Mapping, Sequence

from typing_extensions import TypeAliasType

JsonValue = TypeAliasType("JsonValue", "str | float | Sequence[JsonValue] | Mapping[str, JsonValue] | None")
JsonObject = Mapping[str, JsonValue]
