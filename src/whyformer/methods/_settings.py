"""Settings as they are given, checked: one of a few words, a layer of the model, a preset with exceptions."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from whyformer.errors import MethodError, suggest_nearest


def check_choice(setting: str, value: Any, choices: Sequence[Any]) -> Any:
    """The value, if it is among the choices."""
    if value not in choices:
        words = [choice for choice in choices if isinstance(choice, str)]
        hint = suggest_nearest(value, words) if isinstance(value, str) else ""
        raise MethodError(f"{setting}={value!r} is not a choice.{hint} There are: {', '.join(map(repr, choices))}.")
    return value


def resolve_layer(setting: str, value: Any, layers: int) -> int:
    """The layer meant, counted from the input; a negative value counts from the output."""
    try:
        position = index(value)
    except TypeError:
        raise MethodError(f"{setting}={value!r} is not a layer. Give a whole number.") from None
    if not -layers <= position < layers:
        raise MethodError(
            f"{setting}={value!r} is not a layer of this model, which has {layers}. "
            f"Give {-layers} to {layers - 1}; below 0 counts from the output."
        )
    return position % layers


def apply_preset(presets: Mapping[str, Mapping[str, Any]], preset: str, **given: Any) -> dict[str, Any]:
    """The settings of a preset; what is given explicitly (is not None) goes before it."""
    chosen = presets[check_choice("preset", preset, tuple(presets))]
    return {**chosen, **{name: value for name, value in given.items() if value is not None}}


def check_whole_number(setting: str, value: Any, least: int) -> int:
    """The value, if it is a whole number and not too small."""
    try:
        number = index(value)
    except TypeError:
        raise MethodError(f"{setting}={value!r} is not a whole number.") from None
    if number < least:
        raise MethodError(f"{setting}={value!r} is too few. Give {least} or more.")
    return number


def check_share(setting: str, value: Any) -> float:
    """The value, if it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise MethodError(f"{setting}={value!r} is not a share. Give a number from 0 to 1.")
    return float(value)
