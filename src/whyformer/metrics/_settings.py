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
    guard_settings,
)
from whyformer.errors import MetricError
from whyformer.metrics._ordering import TieOrder

allow_noise = allow_number("a finite number >= 0 (for example 0.02)", limit=1000)
allow_part = allow_number("a number in (0, 1]", most=1, above=0)

# What settings of these names may be, unless a metric says otherwise.
USUAL_CHECKS: dict[str, SettingCheck] = {
    "fill": allow_choice(FILLS),
    "fractions": allow_fractions,
    "magnitude": allow_flag,
    "per": allow_choice(("pixel", "patch")),
    "seed": allow_seed,
    "ties": allow_choice(get_args(TieOrder)),
}
# Declares what the other settings of a metric may be; anything else is a MetricError before the model runs.
check_metric_settings = partial(guard_settings, MetricError, USUAL_CHECKS)


def drop_zero_fraction(fractions: Sequence[float]) -> tuple[float, ...]:
    """The fractions at which something is removed."""
    found = tuple(fraction for fraction in fractions if fraction > 0)
    if not found:
        raise MetricError(f"fractions must contain a number > 0, got {tuple(fractions)}.", code="E_OPTION")
    return found
