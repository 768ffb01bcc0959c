"""Checks for the settings of methods: choices, layers, numbers, and presets."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from whyformer.errors import MethodError, suggest_nearest


def check_choice(setting: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return the value if it is among the choices."""
    if value not in choices:
        words = [choice for choice in choices if isinstance(choice, str)]
        hint = suggest_nearest(value, words) if isinstance(value, str) else ""
        raise MethodError(f"{setting} must be one of {', '.join(map(repr, choices))}; got {value!r}.{hint}")
    return value


def resolve_layer(setting: str, value: Any, layers: int) -> int:
    """The layer index counted from the input; a negative value counts from the output."""
    try:
        position = index(value)
    except TypeError:
        raise MethodError(f"{setting} must be a layer number (int), got {value!r}.") from None
    if not -layers <= position < layers:
        raise MethodError(
            f"{setting} must be between {-layers} and {layers - 1} for this model, got {value!r}. "
            "Negative numbers count from the output."
        )
    return position % layers


def apply_preset(presets: Mapping[str, Mapping[str, Any]], preset: str, **given: Any) -> dict[str, Any]:
    """The settings of a preset; explicit settings (not None) override it."""
    chosen = presets[check_choice("preset", preset, tuple(presets))]
    return {**chosen, **{name: value for name, value in given.items() if value is not None}}


def check_whole_number(setting: str, value: Any, least: int) -> int:
    """Return the value as an int if it is a whole number >= `least`."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise MethodError(f"{setting} must be a whole number >= {least}, got {value!r}.")
    return number


def check_share(setting: str, value: Any) -> float:
    """Return the value as a float if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise MethodError(f"{setting} must be a number from 0 to 1, got {value!r}.")
    return float(value)
