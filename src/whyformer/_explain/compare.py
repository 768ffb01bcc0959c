"""Compare several methods on the same inputs, from one run of the model.

    compare(model, "cat.png", ["rollout", "lrp"]).agreement()

Where the methods cannot share a run, see `sharing`.

    compare_redistribution(open("facebook/dino-vits16"), "cat.jpg").save("rules.png")

shows every head under every rule of redistribution: the figure of Sawaki & Murata, Redistribution of Token-wise
Relevance in Transformer Models, JSAI 2025 (4I1-GS-11-03), with the six heads of DINO's ViT-S/16. Any model whose heads
can be followed through all layers will do; it needs no classes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias, cast

from whyformer._engine import TargetLike
from whyformer._explain.default_method import WORTH_COMPARING, find_input_kind
from whyformer._explain.explain import ModelLike, as_model, explain
from whyformer._explain.method_call import MethodCall, MethodLike, label_methods
from whyformer._explain.sharing import METHOD_FAILURES, explain_by_each, record_for_methods, share_captures
from whyformer._explain.token_generation import write_out
from whyformer._explain.tower_tracing import choose_tower
from whyformer._model import EncodedBatch, InputLike
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError, MethodError, WhyformerError
from whyformer.methods._registry import METHODS
from whyformer.methods.redistribution import RULES, redistribution
from whyformer.results.class_grid import RuleGrid
from whyformer.results.comparison import Comparison
from whyformer.results.explanation import Explanation

COMPARED = 6  # methods, if none is named
MethodsLike: TypeAlias = Literal["quick", "all"] | MethodLike | Sequence[MethodLike]


@neutral_torch()
def compare(
    model: ModelLike,
    inputs: InputLike,
    methods: MethodsLike | None = None,
    *,
    target: TargetLike = None,
    versus: TargetLike = None,
) -> Comparison:
    """Several methods on the same inputs, from one run of the model.

    methods: names, functions or partials of them. By default six that are worth comparing for this kind of input.
    "quick" takes every registered method that needs at most one pass of each kind; "all" adds those that run the model
    many times. Except where you name methods, those that do not work on this model are listed in `failures` with the
    reason; a method that you name must work.
    """
    takes_any = methods is None or (isinstance(methods, str) and methods in ("quick", "all"))
    named = None if takes_any else label_methods(as_method_list(cast(MethodsLike, methods)))
    model = as_model(model)
    inputs, target = write_out(model, inputs, target)
    encoded, target = choose_tower(model, model.encode(inputs), target)
    run = partial(record_for_methods, model=model, encoded=encoded, target=target, versus=versus)

    def explain_all(calls: Mapping[str, MethodCall]) -> tuple[dict[str, Explanation], dict[str, Exception]]:
        captures = share_captures(list(calls.values()), run, tolerate=METHOD_FAILURES if takes_any else ())
        return explain_by_each(calls, captures, model, encoded, tolerate=(WhyformerError,) if takes_any else ())

    if named is not None:
        return Comparison(explain_all(named)[0])
    left = list_candidates(encoded, methods)
    wanted = COMPARED if methods is None else len(left)
    explanations: dict[str, Explanation] = {}
    failures: dict[str, Exception] = {}
    while len(explanations) < wanted and left:
        missing = wanted - len(explanations)
        done, failed = explain_all(label_methods(left[:missing]))
        explanations, failures, left = explanations | done, failures | failed, left[missing:]
    if not explanations:
        raise MethodError(f"No method works on {model.name}. {next(iter(failures.values()))}")
    return Comparison(explanations, {label: str(error) for label, error in failures.items()})


def list_candidates(encoded: EncodedBatch, methods: MethodsLike | None) -> list[str]:
    """The methods to try in this order: all of a group, or without one those worth comparing, then other quick ones."""
    registered = [name for name, method in METHODS.items() if method.is_quick or methods == "all"]
    if methods is not None:
        return registered
    first = WORTH_COMPARING[find_input_kind(encoded)]
    return [*first, *(name for name in registered if name not in (*first, "chance"))]


def as_method_list(methods: MethodLike | Sequence[MethodLike]) -> Sequence[MethodLike]:
    several = methods if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    if not several:
        raise MethodError("No methods to compare. Name at least one, or pass methods='all'.")
    return several


# --- rules of redistribution ------------------------------------------------------------------------------------------


@neutral_torch()
def compare_redistribution(model: ModelLike, inputs: InputLike, rules: Sequence[str] = RULES) -> RuleGrid:
    """The maps of every head and of their mean under each rule: one row per rule, one column per head.

    rules: some of "i", "ii", "iii" and "iv"; see the method `redistribution`.
    """
    if isinstance(rules, str) or not rules or any(rule not in RULES for rule in rules):
        raise MethodError(f"rules must be some of {', '.join(RULES)}, got {rules!r}.", code="E_OPTION")
    model = as_model(model)
    encoded = model.encode(inputs)
    if encoded.batch != 1:
        raise InputError(f"compare_redistribution() takes one input, got {encoded.batch}.")
    heads = explain(model, encoded, redistribution, rule=rules[0]).details["per_head"].shape[1]
    calls = [partial(redistribution, rule=rule, heads=[head]) for rule in rules for head in range(heads)]
    maps = list(compare(model, encoded, [*calls, *(partial(redistribution, rule=rule) for rule in rules)]))
    by_head = {rule: tuple(maps[index * heads : (index + 1) * heads]) for index, rule in enumerate(rules)}
    return RuleGrid(by_head, dict(zip(rules, maps[len(calls) :], strict=True)))
