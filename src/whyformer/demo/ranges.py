"""Check the numbers that the generators of demo data are given."""

from operator import index

from whyformer.errors import InputError


def refuse_outside_range(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse what is not a whole number in this range."""
    try:
        is_inside = low <= index(value) and (high is None or index(value) <= high)  # type: ignore[arg-type]
    except TypeError:
        is_inside = False
    if not is_inside:
        wanted = f">= {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"{name} must be {wanted}, got {value!r}.", code="E_OPTION")
