"""Check the numbers and names that the generators of demo data are given."""

from collections.abc import Iterable
from operator import index

from whyformer.errors import InputError, suggest_nearest


def refuse_outside_range(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse what is not a whole number in this range."""
    try:
        is_inside = low <= index(value) and (high is None or index(value) <= high)  # type: ignore[arg-type]
    except TypeError:
        is_inside = False
    if not is_inside:
        wanted = f">= {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"{name} must be {wanted}, got {value!r}.", code="E_OPTION")


def refuse_unknown_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse what is not a known name, and say which are."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"There is no {what} {name!r}.{suggest_nearest(str(name), known)} Available: {', '.join(known)}.",
            code="E_OPTION",
        )
