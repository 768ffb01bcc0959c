"""Deprecated names, which keep working for one version."""

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Emit a DeprecationWarning: `old` is now called `new`."""
    message = f"{old} is now {new}. The old spelling will be removed in the next version."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def rename_keywords(**names: str) -> Callable[[Function], Function]:
    """Let a function accept keyword arguments under their old names: @rename_keywords(old="new")."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                warn_renamed(f"{old}= of {function.__name__}()", f"{names[old]}=")
                given.setdefault(names[old], given.pop(old))
            return function(*args, **given)

        return cast(Function, call)

    return decorate


def alias_attribute(old: str, new: str) -> Any:
    """An old name for an attribute or method, to be assigned in the class body: old = alias_attribute("old", "new")."""

    def read(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    read.__doc__ = f"Deprecated: use `{new}`."
    return property(read)


def serve_old_names(module: str, renamed: Mapping[str, str], names: Mapping[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of a module in which names were renamed; `names` are its globals()."""

    def find(name: str) -> Any:
        if name in renamed:
            warn_renamed(f"{module}.{name}", f"{module}.{renamed[name]}")
            return names[renamed[name]]
        raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")

    return find
