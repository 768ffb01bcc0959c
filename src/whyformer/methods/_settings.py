"""Checks for the settings of methods. Each method declares them with `@check_method_settings`; see setting_checks.py.

The other functions are for what only the running method knows: the layers of the model, or whether it has patches.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from whyformer._model import FILLS
from whyformer._plain.setting_checks import (
    RefusedSetting,
    SettingCheck,
    allow_choice,
    allow_either,
    allow_flag,
    allow_layer,
    allow_seed,
    allow_whole_number,
    guard_settings,
    quote_value,
)
from whyformer.errors import MethodError
from whyformer.methods._registry import Setting

OWN_MODES = ("keep", "zero", "min")
ANSWER_KINDS = ("score", "probability")
IMAGE_UNITS = ("patch", "superpixel")
TEXT_UNITS = ("word", "token")
allow_boundary = allow_either(("input",), allow_layer, "'input' or the number of a block")

# What settings of these names may be, unless a method says otherwise.
USUAL_CHECKS: dict[str, SettingCheck] = {
    "fill": allow_choice(FILLS),
    "layer": allow_layer,
    "normalise": allow_flag,
    "of": allow_choice(ANSWER_KINDS),
    "own": allow_choice(OWN_MODES),
    "seed": allow_seed,
    "start": allow_layer,
    "superpixels": allow_whole_number(1, 10_000),
    "units": allow_choice((*IMAGE_UNITS, *TEXT_UNITS)),
}
# Declares what the other settings of a method may be; anything else is a MethodError before the model runs.
check_method_settings = partial(guard_settings, MethodError, USUAL_CHECKS)


def check_choice(setting: str, value: Any, choices: Sequence[Any]) -> Any:
    """Return the value if it is among the choices."""
    try:
        return allow_choice(choices)(setting, value)
    except RefusedSetting as refused:
        raise MethodError(str(refused), code="E_OPTION") from None


def resolve_layer(setting: str, value: Any, layers: int) -> int:
    """The layer index counted from the input; a negative value counts from the output."""
    try:
        position: int = allow_layer(setting, value)
    except RefusedSetting as refused:
        raise MethodError(str(refused), code="E_OPTION") from None
    if not -layers <= position < layers:
        raise MethodError(
            f"{setting} must be between {-layers} and {layers - 1} for this model, got {quote_value(value)}. "
            "Negative numbers count from the output.",
            code="E_OPTION",
        )
    return position % layers


def apply_preset(presets: Mapping[str, Mapping[str, Setting]], preset: str, **given: Setting) -> dict[str, Any]:
    """The settings of a preset; explicit settings (not None) override it."""
    chosen = presets[check_choice("preset", preset, tuple(presets))]
    return {**chosen, **{name: value for name, value in given.items() if value is not None}}
