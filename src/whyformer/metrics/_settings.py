"""Checks for the settings of metrics."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from whyformer.errors import MetricError, suggest_nearest


def check_metric_choice(setting: str, value: Any, choices: Sequence[str]) -> None:
    """An error unless the value is among the choices."""
    if value not in choices:
        hint = suggest_nearest(value, choices) if isinstance(value, str) else ""
        raise MetricError(f"{setting} must be one of {', '.join(map(repr, choices))}; got {value!r}.{hint}")


def check_minimum(setting: str, value: float, least: float) -> None:
    """An error unless the value is at least this."""
    if not value >= least:
        raise MetricError(f"{setting} must be >= {least}, got {value!r}.")


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """Return the fractions as a tuple if they increase within [0, 1]."""
    values = tuple(float(f) for f in fractions)
    if not values or any(not 0 <= f <= 1 for f in values) or any(b <= a for a, b in pairwise(values)):
        raise MetricError(f"fractions must increase from 0 to 1, for example (0.1, 0.5); got {fractions}.")
    return values
