"""The settings of an audit, checked before the model is opened."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whyformer._audit.adversarial import SearchSettings
from whyformer._audit.replacement import REPLACEMENT_KINDS
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer.errors import MethodError, suggest_nearest

TESTS = ("agreement", "replacement", "adversarial", "shape", "diagnostic", "seeds", "baseline")
METHOD_GROUPS = ("quick", "all")  # names that stand for several methods


@dataclass(frozen=True)
class AuditSettings:
    """Which tests to run, and how."""

    tests: tuple[str, ...]
    methods: tuple[MethodLike, ...] | str  # a string is one of METHOD_GROUPS
    draws: int
    kinds: tuple[str, ...]
    search: SearchSettings
    search_limit: int | None  # the number of examples in the adversarial search; None for all
    words_only: bool
    top: float
    seed: int

    def check(self) -> None:
        check_names(self.tests, TESTS, "test")
        check_names(self.kinds, REPLACEMENT_KINDS, "replacement")
        if self.draws < 1:
            raise MethodError(f"draws must be >= 1, got {self.draws}.")
        if self.search_limit is not None and self.search_limit < 1:
            raise MethodError(f"search_limit must be >= 1, got {self.search_limit}. Pass None for all examples.")
        if not 0 < self.top <= 1:
            raise MethodError(f"top must be a share of the tokens, > 0 and <= 1, got {self.top}.")
        if not isinstance(self.methods, str):
            label_methods(self.methods)

    def to_fields(self, attention: Sequence[str]) -> dict[str, Any]:
        """The settings as saved with the result and in the plan of a run folder."""
        return {
            "attention": list(attention),
            "tests": list(self.tests),
            "methods": self.methods if isinstance(self.methods, str) else [str(method) for method in self.methods],
            "draws": self.draws,
            "kinds": list(self.kinds),
            "search": asdict(self.search),
            "searched": self.search_limit,
            "words_only": self.words_only,
            "top": self.top,
            "seed": self.seed,
        }


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise MethodError(
                f"There is no {what} {name!r}.{suggest_nearest(name, known)} There are: {', '.join(known)}."
            )


def normalise_methods(methods: MethodLike | Sequence[MethodLike]) -> tuple[MethodLike, ...] | str:
    """A tuple of methods, from one or several; "quick" and "all" stay as they are."""
    if isinstance(methods, str) and methods in METHOD_GROUPS:
        return methods
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        return tuple(methods)
    return (methods,)
