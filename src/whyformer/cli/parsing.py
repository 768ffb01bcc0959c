"""Parse command-line strings into the values that the library takes."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from whyformer.errors import InputError, MethodError

if TYPE_CHECKING:
    from whyformer._engine import TargetLike
    from whyformer._model import Model
    from whyformer.targets import TargetKind

    ParsedTarget = str | int | TargetKind | list[str | int | TargetKind] | None

# Arguments of explain() that are not settings.
RESERVED_NAMES = ("method", "model", "inputs", "target", "versus", "answer", "windows")


class Targets(TypedDict):
    """The keyword arguments target= and versus=."""

    target: "TargetLike"
    versus: "TargetLike"


def parse_targets(model: "Model", target: list[str] | None, versus: str | None) -> Targets:
    versus_words = [] if versus is None else [versus]
    return Targets(target=parse_target(model, target or []), versus=parse_target(model, versus_words))


def parse_target(model: "Model", words: list[str]) -> "ParsedTarget":
    """One target for all inputs, or a list with one for each.

    A label if the model has it, an index if it is a number, a target such as group:cat,dog (whyformer.targets), or a
    token.
    """
    targets = [parse_one_target(word, model.labels or ()) for word in words]
    return None if not targets else targets[0] if len(targets) == 1 else targets


def parse_one_target(word: str, labels: Collection[str]) -> "str | int | TargetKind":
    from whyformer.targets import is_target_text, parse

    if word not in labels and re.fullmatch(r"-?[0-9]{1,18}", word):
        return int(word)
    return parse(word) if is_target_text(word, labels) else word


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """start=1, own=zero, normalise=true: Python values where possible, otherwise strings."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise MethodError(f"{setting!r} is not a setting. Write NAME=VALUE, such as -s start=1.", code="E_OPTION")
        if name in RESERVED_NAMES:
            raise MethodError(f"{name} is not a setting of a method. Use the option of that name.", code="E_OPTION")
        parsed[name] = parse_value(value.strip())
    return parsed


def parse_value(word: str) -> Any:
    constants = {"true": True, "false": False, "none": None}
    if word.lower() in constants:
        return constants[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return word


def parse_pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE, from an option that can be repeated."""
    pairs = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{option} must be NAME=VALUE, got {word!r}.", code="E_OPTION")
        pairs[name] = value
    return pairs


def parse_call(word: str, registry: Mapping[str, Any], what: str) -> "str | Callable[..., Any]":
    """rollout, or with settings rollout(start=1, normalise=True): a name, or a function with its settings bound."""
    name, bracket, _ = word.partition("(")
    if not bracket:
        return word
    try:
        call = ast.parse(word.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise MethodError(
            f"{word!r} is not a {what} with settings. Write NAME(SETTING=VALUE), with strings in quotes.",
            code="E_OPTION",
        ) from None
    return partial(registry[name].compute, **settings) if name in registry else name


def parse_methods(words: list[str]) -> "str | list[str | Callable[..., Any]]":
    """Names of methods, with or without settings; or one of the groups quick and all."""
    import whyformer.methods  # noqa: F401 (fills METHODS)
    from whyformer.methods._registry import METHODS

    if len(words) == 1 and words[0] in ("quick", "all"):
        return words[0]
    return [parse_call(word, METHODS, "method") for word in words]


def refuse_unused_options(
    options: Mapping[str, Any], reason: str, advice: str = "Explain with one method at a time."
) -> None:
    """Refuse options that would have no effect."""
    for option, value in options.items():
        if value:
            raise MethodError(f"{option} cannot be combined with {reason}. {advice}", code="E_USAGE")
