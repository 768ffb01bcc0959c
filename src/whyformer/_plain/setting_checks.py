"""What the value of a setting may be: one check per setting, and the sentence if the value is something else.

    @guard_settings(MethodError, {"seed": allow_seed}, budget=allow_whole_number(1))
    def lime(probe, *, budget=1000, seed=0): ...

    lime(probe, budget="x")                     MethodError [E_OPTION]: budget must be a whole number >= 1, got 'x'.
    read_settings(lime, {"budget": np.int64(5)})        {"budget": 5}; the same check, before the model runs

A check takes the name of the setting and the value, and returns the value as plain Python. The default of a setting is
accepted as it is, so a setting whose default is None may be None.
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeAlias, TypeVar

from whyformer.errors import WhyformerError, suggest_nearest

P = ParamSpec("P")
R = TypeVar("R")
SettingCheck = Callable[[str, Any], Any]
Settings: TypeAlias = Mapping[str, Any]
MOST = 10**6  # samples, masks or steps: beyond this, memory or time run out
LARGEST_SEED = 2**64
LONGEST_QUOTE = 100


class RefusedSetting(Exception):
    """The value of a setting is not allowed; the message says what is."""


def refuse_setting(setting: str, wanted: str, value: Any) -> RefusedSetting:
    return RefusedSetting(f"{setting} must be {wanted}, got {quote_value(value)}.")


def quote_value(value: Any) -> str:
    """A value for a message: its repr, shortened."""
    try:
        words = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        words = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    words = " ".join(words.split())
    return words if len(words) <= LONGEST_QUOTE else f"{words[:LONGEST_QUOTE]}..."


def to_plain_number(value: Any) -> int | float | None:
    """A Python number from one of Python, numpy or torch (a scalar); None if it is not a real number."""
    if getattr(value, "ndim", None) == 0:
        value = to_plain_values(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        return None


def to_plain_values(value: Any) -> Any:
    """Python numbers from an array or a tensor; anything else, and a tensor without data, as it is."""
    try:
        return value.tolist() if hasattr(value, "ndim") and hasattr(value, "tolist") else value
    except RuntimeError:  # the meta device, a sparse tensor, gradients under functorch
        return None


# --- checks -----------------------------------------------------------------------------------------------------------


def allow_whole_number(least: int | None = None, most: int = MOST) -> SettingCheck:
    """A whole number from `least` to `most`."""

    def check(setting: str, value: Any) -> int:
        number = to_plain_number(value)
        if not isinstance(number, int) or (least is not None and number < least):
            raise refuse_setting(setting, "a whole number" + (f" >= {least}" if least is not None else ""), value)
        if number > most or (least is None and number < -most):
            raise refuse_setting(setting, f"a whole number of at most {most}", value)
        return number

    return check


allow_seed = allow_whole_number(most=LARGEST_SEED)


def allow_number(
    wanted: str, least: float = 0.0, most: float = math.inf, *, above: float = -math.inf, limit: float = math.inf
) -> SettingCheck:
    """A finite number from `least` to `most` that is larger than `above`; `wanted` says so in words.

    limit: beyond it, numbers overflow; the message names it only where it is exceeded.
    """

    def check(setting: str, value: Any) -> float:
        number = to_plain_number(value)
        if number is None or abs(number) > sys.float_info.max or not least <= number <= most or number <= above:
            raise refuse_setting(setting, wanted, value)
        if number > limit:
            raise refuse_setting(setting, f"at most {limit:g}", value)
        return float(number)

    return check


allow_share = allow_number("a number from 0 to 1", most=1)


def allow_choice(choices: Sequence[str | float | None]) -> SettingCheck:
    """One of these words, numbers or flags."""

    def check(setting: str, value: Any) -> str | float | None:
        given = value if isinstance(value, str | bool) else to_plain_number(value)
        if (given is None and value is not None) or given not in choices:
            words = [choice for choice in choices if isinstance(choice, str)]
            hint = suggest_nearest(value, words) if isinstance(value, str) else ""
            listed = ", ".join(map(repr, choices))
            raise RefusedSetting(f"{setting} must be one of {listed}; got {quote_value(value)}.{hint}")
        return choices[choices.index(given)]

    return check


allow_flag = allow_choice((True, False))


def allow_layer(setting: str, value: Any) -> int:
    """A whole number; whether there is such a layer is known once the model is."""
    number = to_plain_number(value)
    if not isinstance(number, int):
        raise refuse_setting(setting, "a layer number (int)", value)
    return number


def allow_either(words: Sequence[str], number: SettingCheck, wanted: str) -> SettingCheck:
    """One of these words, or a number that passes the check."""

    def check(setting: str, value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        try:
            return number(setting, value)
        except RefusedSetting:
            raise refuse_setting(setting, wanted, value) from None

    return check


def allow_fractions(setting: str, value: Any) -> tuple[float, ...]:
    """Numbers that increase within [0, 1]."""
    listed = to_plain_values(value)
    numbers = [to_plain_number(item) for item in listed] if isinstance(listed, Sequence | range) else []
    found = tuple(float(number) for number in numbers if number is not None)
    increases = all(first < second for first, second in pairwise(found)) and len(found) == len(numbers)
    if not found or not increases or not all(0 <= number <= 1 for number in found):
        raise RefusedSetting(f"{setting} must increase from 0 to 1, for example (0.1, 0.5); got {quote_value(value)}.")
    return found


# --- functions with checked settings ----------------------------------------------------------------------------------


def guard_settings(
    error: type[WhyformerError], usual: Mapping[str, SettingCheck], /, **own: SettingCheck
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the keyword-only arguments of a function at every call: by a check of its own, or the usual one."""
    checks = {**usual, **own}

    def guard(compute: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(compute).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        if odd := (defaults.keys() - checks.keys()) | (own.keys() - defaults.keys()):
            raise TypeError(f"{compute.__name__}() needs one check for each setting: {', '.join(sorted(odd))}.")

        def read(settings: Settings) -> dict[str, Any]:
            try:
                return {
                    name: value if name not in checks or value is defaults[name] else checks[name](name, value)
                    for name, value in settings.items()
                }
            except RefusedSetting as refused:
                raise error(str(refused), code="E_OPTION") from None

        @wraps(compute)
        def guarded(*args: P.args, **settings: P.kwargs) -> R:
            return compute(*args, **read(settings))  # type: ignore[arg-type]

        vars(guarded)["read_settings"] = read
        return guarded

    return guard


def take_settings_of(guarded: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function with `**settings` the settings, defaults and checks of another one, to which it passes them."""
    parameters = inspect.signature(guarded).parameters.values()
    settings = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    def take(compute: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(compute)
        needs = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        vars(compute)["__signature__"] = own.replace(parameters=[*needs, *settings])
        vars(compute)["read_settings"] = vars(guarded)["read_settings"]
        return compute

    return take


def read_settings(compute: Callable[..., Any], settings: Settings) -> dict[str, Any]:
    """The settings of a guarded function as plain values, checked; those of another function as they are."""
    read: Callable[[Settings], dict[str, Any]] = vars(compute).get("read_settings", dict)
    return read(settings)


def list_entries(given: Any) -> list[Any] | None:
    """The entries of a list, a tuple, an array or anything else that is iterable; None of a text, a number and such."""
    try:
        values = given.tolist() if hasattr(given, "tolist") else given
        return None if isinstance(values, str | bytes | Mapping) else list(values)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # what numbers, tensors without data ... raise
        return None
