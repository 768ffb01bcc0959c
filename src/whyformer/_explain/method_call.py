"""A method call: a method with checked settings, ready to be computed from a capture.

    choose_method("rollout", {"start": 1})               one call
    label_methods(["lrp", partial(rollout, start=1)])    several, by label: "lrp", "rollout(start=1)"

Misspelt methods and settings raise here, before a model is run. Given scores are a method as well, so that judge() and
compare() take them beside their own:

    judge(model, texts, ["libragrad", Explanation.from_scores(model, texts, scores, method="captum IG")])
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

import whyformer.methods  # noqa: F401 (fills METHODS)
from whyformer._engine import Probe, Recipe, find_recipe, make_recipe
from whyformer._explain.precision import PRECISIONS
from whyformer._plain.setting_checks import RefusedSetting, allow_whole_number, quote_value, read_settings
from whyformer._plain.tokens import Pieces
from whyformer.errors import InputError, MethodError
from whyformer.methods import _layers_and_heads
from whyformer.methods._registry import METHODS, Method, RegisteredMethodLike, Setting, check_settings, find_method
from whyformer.methods._settings import check_choice
from whyformer.results.explanation import Explanation
from whyformer.results.given_scores import FINGERPRINT, read_fingerprints

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


# --- given scores as a method -----------------------------------------------------------------------------------------


def as_given_method(given: Explanation) -> Method:
    """A method that returns the scores of this explanation for the examples that it has, and refuses others."""
    if FINGERPRINT not in given.details:
        raise MethodError(
            f"This explanation by {given.method} cannot be used as a method: name the method, or pass scores that were "
            "computed elsewhere by Explanation.from_scores()."
        )
    name = f"{given.method} (given)" if given.method in METHODS else given.method
    return Method(
        name, make_look_up(given), ("probe",), {}, "", given.class_specific, given.signed, None,
        extra_cost="given scores", is_given=True,
    )  # fmt: skip


def make_look_up(given: Explanation) -> Callable[..., Tensor]:
    """The function of the method: finds each example by its fingerprint."""
    rows = {number: i for i, number in enumerate(read_fingerprints(given.details[FINGERPRINT]))}

    def look_up(probe: Probe) -> Tensor:
        found = [rows.get(number) for number in probe.fingerprints]
        if None in found:
            raise InputError(f"{given.method} has no scores for {probe.encoded.names[found.index(None)]}.")
        places = [place for place in found if place is not None]
        for place, target in zip(places, probe.targets, strict=True):
            own = given.targets[place]
            if (own.index, own.spec, own.versus) != (target.index, target.spec, target.versus):
                raise InputError(
                    f"The scores of {given.method} explain {own.label!r}, not {target.label!r}. Pass the same target= "
                    "to both."
                )
        if given.pixels is not None:
            return given.pixels[places]
        return torch.stack([move_scores(given, place, probe, i) for i, place in enumerate(places)])

    return look_up


def move_scores(given: Explanation, place: int, probe: Probe, example: int) -> Tensor:
    """The scores of an example, padded as it is in this batch."""
    own, there = given.tokens[place], probe.tokens[example]
    if not isinstance(own, Pieces) or not isinstance(there, Pieces):
        return given.scores[place]
    source, goal = (~torch.tensor(tokens.padding) for tokens in (own, there))
    if int(source.sum()) != int(goal.sum()):
        raise InputError(f"{given.method} has {int(source.sum())} scores for {int(goal.sum())} tokens.")
    moved = given.scores.new_zeros(len(there))
    moved[goal] = given.scores[place][source]
    return moved
