"""A method call: a method with checked settings, ready to be computed from a capture.

    choose_method("rollout", {"start": 1})               one call
    label_methods(["lrp", partial(rollout, start=1)])    several, by label: "lrp", "rollout(start=1)"

Misspelt methods and settings raise here, before a model is run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import whyformer.methods  # noqa: F401 (fills METHODS)
from whyformer._engine import Recipe, find_recipe, make_recipe
from whyformer._explain.given_method import as_given_method
from whyformer._explain.precision import PRECISIONS
from whyformer._plain.setting_checks import RefusedSetting, allow_whole_number, quote_value, read_settings
from whyformer.errors import MethodError
from whyformer.methods import _layers_and_heads
from whyformer.methods._registry import Method, RegisteredMethodLike, Setting, check_settings, find_method
from whyformer.methods._settings import check_choice
from whyformer.results.explanation import Explanation

MethodLike: TypeAlias = RegisteredMethodLike | Explanation  # scores that were computed elsewhere are a method, too

MOST_SAMPLES = 10_000


@dataclass(frozen=True)
class MethodCall:
    """A method, its settings, and the recipe (set of relevance rules) that they name."""

    method: Method
    settings: dict[str, Setting]  # arguments of the method's function
    recipe: Recipe | None
    selected: dict[str, Any] = field(default_factory=dict)  # layers, heads, per_layer where they are not the default
    wants_health: bool = False
    precision: str | None = None  # in which the model is run; None: the model's own
    samples: int = 1  # runs to average the scores of, for a model that answers at random

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The sites to capture, including those that only these settings need."""
        return self.method.needs_with(self.settings)

    @property
    def all_settings(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain values that a file can hold."""
        settings = {name: as_plain_setting(value) for name, value in {**self.settings, **self.selected}.items()}
        settings |= {} if self.precision is None else {"precision": self.precision}
        settings |= {} if self.samples == 1 else {"samples": self.samples}
        if self.recipe is None:
            return settings
        rules = {"recipe": self.recipe.name, "stabiliser": self.recipe.stabiliser.name, **self.recipe.parameters}
        return settings | rules

    @property
    def key(self) -> Any:
        """What the scores depend on besides the capture, as a key; None if a setting cannot be part of one."""
        try:
            return self.method.compute, freeze_setting(self.settings), freeze_setting(self.selected), self.recipe
        except TypeError:
            return None


def freeze_setting(value: Any) -> Any:
    """A setting as a key; equal numbers of different types are different keys."""
    if value is None or type(value) in (bool, int, float, str):
        return type(value), value
    if type(value) in (list, tuple, range):
        return type(value), tuple(freeze_setting(item) for item in value)
    if type(value) is dict:
        return tuple((name, freeze_setting(item)) for name, item in value.items())
    raise TypeError(f"{type(value).__name__} cannot be part of a key")


def as_plain_setting(value: Any) -> Any:
    """Convert scalars of numpy or torch to Python numbers, and collections to lists."""
    if isinstance(value, list | tuple | range | set | frozenset):
        return [as_plain_setting(item) for item in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def resolve_method(wanted: MethodLike) -> tuple[Method, dict[str, Setting]]:
    """The method, and the settings of a `partial`."""
    return find_method(as_given_method(wanted) if isinstance(wanted, Explanation) else wanted)


def choose_method(wanted: MethodLike, settings: Mapping[str, Setting]) -> MethodCall:
    """Find a method, check its settings and fill in the defaults."""
    method, preset = resolve_method(wanted)
    given: dict[str, Any] = {**preset, **settings}
    offered = _layers_and_heads.list_selection_settings(method.needs)
    selection = {name: default for name, default in offered.items() if name not in method.settings}
    wanted_recipe: Any = given.get("recipe", method.recipe)
    parameters = find_recipe(wanted_recipe).parameters if method.recipe else {}
    general = [*(["health"] if method.recipe else []), "precision", "samples"]
    check_settings(method, given, [*selection, *parameters, *general])
    defaults = {**method.settings, **selection, "health": False}
    for name in given:
        if isinstance(defaults.get(name), bool) and not isinstance(given[name], bool):
            raise MethodError(f"{name} must be True or False, got {quote_value(given[name])}.", code="E_OPTION")
    recipe = None
    if method.recipe:
        given_parameters = {name: given[name] for name in parameters if name in given}
        recipe = make_recipe(wanted_recipe, given.get("stabiliser"), **given_parameters)
    precision = given.get("precision")
    own_settings = {name: given.get(name, default) for name, default in method.settings.items()}
    return MethodCall(
        method,
        settings=read_settings(method.compute, own_settings),
        recipe=recipe,
        selected={name: given[name] for name, default in selection.items() if given.get(name, default) is not default},
        wants_health=bool(given.get("health")),
        precision=None if precision is None else check_choice("precision", precision, tuple(PRECISIONS)),
        samples=1 if "samples" in method.settings else check_samples(given.get("samples", 1)),
    )


def check_samples(samples: Any) -> int:
    try:
        return allow_whole_number(1, MOST_SAMPLES)("samples", samples)
    except RefusedSetting as refused:
        raise MethodError(str(refused), code="E_OPTION") from None


def label_methods(methods: Sequence[MethodLike]) -> dict[str, MethodCall]:
    """The calls by label: the name of the method, with its settings where they were given."""
    calls: dict[str, MethodCall] = {}
    for wanted in methods:
        method, given = resolve_method(wanted)
        settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
        label = f"{method.name}({settings})" if settings else method.name
        if label in calls:
            raise MethodError(f"{label} is listed twice. List it once, or with different settings.")
        calls[label] = choose_method(wanted, {})
    return calls
