"""The settings of an audit, checked before the model is opened."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whyformer._audit.checks import REPLACEMENT_KINDS, SearchSettings, choose_search
from whyformer._explain.method_call import MethodLike, as_plain_setting, label_methods
from whyformer._plain.json_value import JsonValue
from whyformer._plain.setting_checks import RefusedSetting, allow_number, quote_value
from whyformer._runs.arguments import MAX_SEED, as_argument_list, check_run_flag, check_run_number
from whyformer.errors import InputError, MethodError, TargetError, suggest_nearest

TESTS = ("agreement", "replacement", "adversarial", "adversary", "shape", "diagnostic", "seeds", "baseline")
METHOD_GROUPS = ("quick", "all")  # names that stand for several methods
NUMBERS = {  # the least and the most; all replacements of one batch are listed in memory
    "samples": (1, 100_000), "seed": (0, MAX_SEED), "adversary_epochs": (0, 10_000),
}  # fmt: skip


@dataclass(frozen=True)
class AuditSettings:
    """Which tests to run, and how."""

    tests: tuple[str, ...]
    methods: tuple[MethodLike, ...] | str  # a string is one of METHOD_GROUPS
    kinds: tuple[str, ...]
    search: SearchSettings
    samples: int = 100
    search_limit: int | None = 100  # the number of examples in the adversarial search; None for all
    words_only: bool = False
    top: float = 0.2
    seed: int = 0
    target: int | str | None = None  # the class that importance is measured for; None: the predicted one
    adversary_epochs: int = 0  # of the trained adversary; 0 for none

    def check(self) -> "AuditSettings":
        check_names(self.tests, TESTS, "test")
        check_names(self.kinds, REPLACEMENT_KINDS, "replacement")
        try:
            for name, (least, most) in NUMBERS.items():
                check_run_number(name, getattr(self, name), least=least, most=most)
            check_run_flag("words_only", self.words_only)
            allow_number("a share of the tokens, > 0 and <= 1", most=1, above=0)("top", self.top)
            if self.search_limit is not None:
                check_run_number("search_limit", self.search_limit, least=1)
        except (InputError, RefusedSetting) as error:
            hint = " Pass None for all examples." if str(error).startswith("search_limit") else ""
            raise MethodError(f"{error}{hint}", code="E_OPTION") from None
        if isinstance(self.target, bool) or not isinstance(self.target, int | str | None):
            raise TargetError(
                f"audit takes a class or a next token as target, by index or name, got {quote_value(self.target)}. "
                "Use judge(), which takes every target."
            )
        if not isinstance(self.methods, str):
            label_methods(self.methods)
        return self

    def to_fields(self, attention: Sequence[str]) -> dict[str, JsonValue]:
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
            **({"adversary_epochs": self.adversary_epochs} if self.adversary_epochs else {}),
        }


def choose_audit_settings(
    *,
    tests: Sequence[str] | None = None,
    methods: MethodLike | Sequence[MethodLike] = (),
    kinds: Sequence[str] = REPLACEMENT_KINDS,
    preset: str = "paper",
    steps: int | None = None,
    **others: Any,
) -> AuditSettings:
    """The settings that arguments of `audit` stand for, checked."""
    return AuditSettings(
        tests=TESTS if tests is None else tuple(as_argument_list(tests)),
        methods=normalise_methods(methods),
        kinds=tuple(as_argument_list(kinds)),
        search=choose_search(preset, steps=as_plain_setting(steps)),
        **{name: as_plain_setting(value) for name, value in others.items()},
    ).check()


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


def normalise_methods(methods: MethodLike | Sequence[MethodLike]) -> tuple[MethodLike, ...] | str:
    """A tuple of methods, from one or several; "quick" and "all" stay as they are."""
    if isinstance(methods, str) and methods in METHOD_GROUPS:
        return methods
    if isinstance(methods, Sequence) and not isinstance(methods, str):
        return tuple(methods)
    return (methods,)
