"""A method is a plain function: arguments before the star are captured sites, those after it are its settings.

    @method(paper="Abnar & Zuidema, ACL 2020", class_specific=False, signed=False)
    def rollout(attention, readout, *, start=0): ...

    METHODS["rollout"].needs == ("attention", "readout")

A need with a default (None) is captured only if a setting requires it: `@method(extra_needs={"at": ("hidden",)})` with
`def slope(input_grad, hidden=None, *, at="input")` captures hidden states for every `at` except "input".

The decorator returns the function unchanged, so tests can call it with tensors.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn
from typing_extensions import TypeAliasType

from whyformer._engine import SITES, Recipe
from whyformer._model import Model
from whyformer._plain.small_table import make_small_table
from whyformer.errors import MethodError, suggest_nearest

# The value of a setting of a method or a metric.
Setting = TypeAliasType(
    "Setting",
    "str | float | Sequence[Setting] | Mapping[str, Setting] | Tensor | np.ndarray | Recipe | nn.Module | Model | None",
)
COSTLY_SITES = {name for name, site in SITES.items() if site.is_costly}


@dataclass(frozen=True)
class Scores:
    """Scores with details, which a method may return instead of scores alone.

    details: floating-point tensors whose first axis is the batch.
    """

    values: Tensor
    details: Mapping[str, Tensor] = field(default_factory=dict)


MethodFunction = Callable[..., Tensor | Scores]


@dataclass(frozen=True, repr=False)
class Method:
    """A registered method: its function, what it needs and what it claims."""

    name: str
    compute: MethodFunction
    needs: tuple[str, ...]
    settings: Mapping[str, Setting]  # name -> default
    paper: str
    class_specific: bool
    signed: bool
    recipe: str | None  # its default relevance recipe; None if it needs no relevance
    extra_cost: str | None = None  # how often it reruns the model, in words; None if it does not
    # setting -> what is also captured if that setting does not have its default
    extra_needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reads_attention: bool = False  # also if it needs nothing but the probe
    note: Callable[..., str] | None = None  # takes what `compute` takes; a sentence to show beside its scores, or ""
    is_given: bool = False  # its scores were computed elsewhere, for some examples and one target each

    def __repr__(self) -> str:
        return f"<Method {self.name}: {self.paper}; {self.cost}>"

    def _repr_html_(self) -> str:
        return make_small_table(METHOD_HEADINGS, [list_method_facts(self)])

    def needs_with(self, settings: Mapping[str, Setting]) -> tuple[str, ...]:
        """The sites to capture for these settings."""
        more = [needs for name, needs in self.extra_needs.items() if not self.has_default(name, settings.get(name))]
        return tuple(dict.fromkeys((*self.needs, *(need for needs in more for need in needs))))

    def has_default(self, name: str, value: Setting) -> bool:
        """Of the same type and equal, since tensors and arrays have no single answer to `==`."""
        default = self.settings[name]
        return value is default or (isinstance(value, type(default)) and bool(value == default))

    @property
    def summary(self) -> str:
        """The first line of the docstring: what the number means."""
        return (inspect.getdoc(self.compute) or "").split("\n")[0]

    @property
    def cost(self) -> str:
        """The passes through the model, in words."""
        backward, relevance = "backward" if self.needs_gradient else "", "relevance" if self.recipe else ""
        return " + ".join(filter(None, ("forward", backward, relevance, self.extra_cost)))

    @property
    def is_quick(self) -> bool:
        """It takes one forward and at most one backward pass of each kind."""
        return not COSTLY_SITES & set(self.needs)

    @cached_property
    def needs_gradient(self) -> bool:
        return any(SITES[need].is_gradient for need in self.needs)


METHOD_HEADINGS = ("method", "what a score means", "for one class", "cost", "paper")


def list_method_facts(one: Method) -> tuple[str, ...]:
    return one.name, one.summary, "yes" if one.class_specific else "no", one.cost, one.paper


class MethodTable(dict[str, Method]):
    """Methods by name, which display as a table."""

    def __repr__(self) -> str:
        return f"<{len(self)} methods: {', '.join(sorted(self))}>"

    def _repr_html_(self) -> str:
        rows = [list_method_facts(self[name]) for name in sorted(self)]
        return make_small_table(METHOD_HEADINGS, rows, title=f"{len(self)} methods")


METHODS: dict[str, Method] = MethodTable()


def method(
    *,
    paper: str,
    class_specific: bool,
    signed: bool,
    recipe: str | None = None,
    cost: str | None = None,
    extra_needs: Mapping[str, tuple[str, ...]] | None = None,
    reads_attention: bool = False,
    note: Callable[..., str] | None = None,
) -> Callable[[MethodFunction], MethodFunction]:
    """Register a function as a method under its own name.

    cost: in words, how often a method that needs the probe reruns the model ("one forward a token").
    extra_needs: what is also captured if a setting does not have its default.
    reads_attention: the method reads or changes attention through the probe.
    note: takes what the method takes, and returns a sentence to show beside these scores, or nothing.
    """

    def register(compute: MethodFunction) -> MethodFunction:
        METHODS[compute.__name__] = describe_method(
            compute, paper=paper, class_specific=class_specific, signed=signed, recipe=recipe, extra_cost=cost,
            extra_needs=extra_needs or {}, reads_attention=reads_attention, note=note,
        )  # fmt: skip
        return compute

    return register


def describe_method(compute: MethodFunction, **facts: Any) -> Method:
    """Read needs and settings from a signature."""
    parameters = inspect.signature(compute).parameters.values()
    before = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    needs, more = (tuple(p.name for p in before if (p.default is p.empty) is always) for always in (True, False))
    settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if unknown := [need for need in (*needs, *more) if need not in SITES]:
        raise MethodError(
            f"{compute.__name__}() needs {', '.join(unknown)}, which cannot be captured. Sites: {', '.join(SITES)}. "
            "Put settings after a star in the signature."
        )
    extra_needs = facts.get("extra_needs") or {}
    if any(name not in settings for name in extra_needs) or any(tuple(named) != more for named in extra_needs.values()):
        raise MethodError(
            f"{compute.__name__}() has a default for {', '.join(more) or 'no need'}; `extra_needs` must list exactly "
            "these, in this order, under a setting."
        )
    if more and not extra_needs:
        raise MethodError(
            f"{compute.__name__}() has a default for {', '.join(more)}; declare in `extra_needs` when it is needed."
        )
    if any(SITES[need].is_relevance for need in needs) != bool(facts["recipe"]):
        raise MethodError(f"{compute.__name__}() must name a recipe if, and only if, it needs relevance.")
    if bool(COSTLY_SITES & set(needs)) != bool(facts.get("extra_cost")):
        raise MethodError(
            f"{compute.__name__}() must declare its cost if, and only if, it needs {' or '.join(sorted(COSTLY_SITES))}."
        )
    return Method(compute.__name__, compute, needs, settings, **facts)


RegisteredMethodLike: TypeAlias = str | Method | MethodFunction | partial[Tensor | Scores]


def find_method(wanted: RegisteredMethodLike) -> tuple[Method, dict[str, Setting]]:
    """The method for a name, a registered function or a `partial` of one, and the settings of the `partial`."""
    if isinstance(wanted, Method):
        return wanted, {}
    if isinstance(wanted, partial):
        named, settings = find_method(wanted.func)
        if wanted.args:
            raise MethodError(
                f"partial() of {named.name} has positional arguments. Pass its settings by name.", code="E_OPTION"
            )
        return named, settings | wanted.keywords
    if isinstance(wanted, str):
        if wanted not in METHODS:
            known = ", ".join(sorted(METHODS))
            if (name := wanted.partition("(")[0]) in METHODS:
                raise MethodError(
                    f"{wanted!r} has settings, which a name cannot have in Python. Pass "
                    f"functools.partial(whyformer.methods.{name}, setting=value).",
                    code="E_OPTION",
                )
            raise MethodError(f"No method {wanted!r}.{suggest_nearest(wanted, METHODS)} Available: {known}.")
        return METHODS[wanted], {}
    for known_method in METHODS.values():
        if known_method.compute is wanted:
            return known_method, {}
    if isinstance(wanted, list | tuple):
        raise MethodError(f"Got {len(wanted)} methods where one is needed. Use compare() or judge() for several.")
    raise MethodError(f"{wanted!r} is not a method. Pass a name, or a function decorated with @whyformer.method.")


CALL_ARGUMENTS = ("target", "versus", "answer", "windows")  # of explain(); misspelt, they look like settings


def check_settings(chosen: Method, settings: Mapping[str, Setting], offered: Iterable[str] = ()) -> None:
    """Refuse settings that the method does not have; `offered` are those that all methods of its kind have."""
    known = [*chosen.settings, *(["recipe", "stabiliser"] if chosen.recipe else []), *offered]
    for name in settings:
        if name not in known:
            available = f"Settings of {chosen.name}: {', '.join(known)}." if known else "It has none."
            others = [other.name for other in METHODS.values() if name in other.settings]
            hint = suggest_nearest(name, [*known, *CALL_ARGUMENTS]) or (
                f" It belongs to {', '.join(others[:3])}." if others else ""
            )
            raise MethodError(f"{chosen.name} has no setting {name!r}.{hint} {available}", code="E_OPTION")
