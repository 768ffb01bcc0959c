"""JSON as types."""

from typing import TypeAlias, Union

Json: TypeAlias = Union[str, int, float, bool, "list[Json]", "dict[str, Json]", None]
JsonObject: TypeAlias = dict[str, Json]
