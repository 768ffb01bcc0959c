"""Checks for the settings of metrics, which declare them with `@check_metric_settings`; see setting_checks.py."""

from collections.abc import Sequence
from functools import partial
from typing import get_args

from whyformer._model import FILLS
from whyformer._plain.setting_checks import (
    SettingCheck,
    allow_choice,
    allow_flag,
    allow_fractions,
    allow_number,
    allow_seed,
    allow_whole_number,
    guard_settings,
)
from whyformer.errors import MetricError
from whyformer.metrics._ordering import TieOrder

# Declares what each setting of a metric may be; anything else is a MetricError before the model runs.
check_metric_settings = partial(guard_settings, MetricError)
allow_noise = allow_number("a finite number >= 0 (for example 0.02)", limit=1000)

# Settings that several metrics share.
REMOVAL: dict[str, SettingCheck] = {"fill": allow_choice(FILLS), "seed": allow_seed}
TIES: dict[str, SettingCheck] = {"ties": allow_choice(get_args(TieOrder))}
REMOVAL_STEPS: dict[str, SettingCheck] = {**REMOVAL, **TIES, "fractions": allow_fractions}
SAMPLING: dict[str, SettingCheck] = {
    **REMOVAL,
    "samples": allow_whole_number(2),
    "fraction": allow_number("a number in (0, 1]", most=1, above=0),
}
PER_UNIT: dict[str, SettingCheck] = {"per": allow_choice(("pixel", "patch"))}
MAGNITUDE: dict[str, SettingCheck] = {"magnitude": allow_flag}


def drop_zero_fraction(fractions: Sequence[float]) -> tuple[float, ...]:
    """The fractions at which something is removed."""
    found = tuple(fraction for fraction in fractions if fraction > 0)
    if not found:
        raise MetricError(f"fractions must contain a number > 0, got {tuple(fractions)}.", code="E_OPTION")
    return found
