"""The settings of an audit, checked before the model is opened."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, cast

from whyformer._audit.checks import REPLACEMENT_KINDS, SearchSettings
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer._plain.setting_checks import quote_value
from whyformer._runs.arguments import MAX_SEED, check_run_number
from whyformer.errors import InputError, MethodError, TargetError, suggest_nearest

TESTS = ("agreement", "replacement", "adversarial", "shape", "diagnostic", "seeds", "baseline")
METHOD_GROUPS = ("quick", "all")  # names that stand for several methods
MAX_SWAPPED = 32  # examples on the page of swapped heads
MAX_DRAWS = 100_000  # random replacements per example; all of one batch are listed in memory


@dataclass(frozen=True)
class AuditSettings:
    """Which tests to run, and how."""

    tests: tuple[str, ...]
    methods: tuple[MethodLike, ...] | str  # a string is one of METHOD_GROUPS
    samples: int
    kinds: tuple[str, ...]
    search: SearchSettings
    search_limit: int | None  # the number of examples in the adversarial search; None for all
    words_only: bool
    top: float
    seed: int
    target: int | str | None = None  # the class that importance is measured for; None: the predicted one
    swap_limit: int = 0  # the number of examples on the page of swapped heads; no row depends on it

    def check(self) -> None:
        check_names(self.tests, TESTS, "test")
        check_names(self.kinds, REPLACEMENT_KINDS, "replacement")
        check_audit_number("samples", self.samples, least=1, most=MAX_DRAWS)
        check_audit_number("seed", self.seed, least=0, most=MAX_SEED)
        check_audit_number("swap_limit", self.swap_limit, least=0, most=MAX_SWAPPED)
        if self.search_limit is not None:
            check_audit_number("search_limit", self.search_limit, least=1, hint=" Pass None for all examples.")
        top, words_only = cast(Any, self.top), cast(Any, self.words_only)  # as the caller gave them
        if isinstance(top, bool) or not isinstance(top, Real) or not 0 < float(top) <= 1:
            raise MethodError(
                f"top must be a share of the tokens, > 0 and <= 1, got {quote_value(top)}.", code="E_OPTION"
            )
        if not isinstance(words_only, bool):
            raise MethodError(f"words_only must be True or False, got {quote_value(words_only)}.", code="E_OPTION")
        target = cast(Any, self.target)
        if target is not None and (isinstance(target, bool) or not isinstance(target, int | str)):
            raise TargetError(
                f"audit takes a class or a next token as target, by index or name, got {quote_value(target)}. "
                "Use judge(), which takes every target."
            )
        if not isinstance(self.methods, str):
            label_methods(self.methods)

    def to_fields(self, attention: Sequence[str]) -> dict[str, Any]:
        """The settings as saved with the result and in the plan of a run folder."""
        return {
            "attention": list(attention),
            "tests": list(self.tests),
            "methods": self.methods if isinstance(self.methods, str) else [str(method) for method in self.methods],
            "draws": self.samples,
            "kinds": list(self.kinds),
            "search": asdict(self.search),
            "searched": self.search_limit,
            "words_only": self.words_only,
            "top": self.top,
            "seed": self.seed,
            **({} if self.target is None else {"target": self.target}),
        }


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    if not given:
        raise MethodError(f"No {what} was chosen. Available: {', '.join(known)}.", code="E_OPTION")
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise MethodError(
                f"There is no {what} {quote_value(name)}.{suggest_nearest(str(name), known)} Available: "
                f"{', '.join(known)}.",
                code="E_OPTION",
            )


def check_audit_number(name: str, value: Any, *, least: int, most: int | None = None, hint: str = "") -> None:
    """Refuse all but whole numbers in this range."""
    try:
        check_run_number(name, value, least=least, most=most)
    except InputError as error:
        raise MethodError(f"{error}{hint}", code=error.code) from None


def normalise_methods(methods: MethodLike | Sequence[MethodLike]) -> tuple[MethodLike, ...] | str:
    """A tuple of methods, from one or several; "quick" and "all" stay as they are."""
    if isinstance(methods, str) and methods in METHOD_GROUPS:
        return methods
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        return tuple(methods)
    return (methods,)
