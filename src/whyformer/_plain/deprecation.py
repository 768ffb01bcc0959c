"""Old spellings, which keep working for one version."""

import warnings


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Say once per place that `old` is called `new` now."""
    message = f"{old} is now {new}. The old spelling will be removed in the next version."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
