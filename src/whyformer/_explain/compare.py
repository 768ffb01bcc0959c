"""Compare several methods on the same inputs, from one run of the model.

    compare(model, "cat.png", ["rollout", "lrp"]).agreement()

Where the methods cannot share a run, see `sharing`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias

from whyformer._engine import TargetLike
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike, label_methods
from whyformer._explain.sharing import METHOD_FAILURES, explain_by_each, record_for_methods, share_captures
from whyformer._explain.token_generation import write_out
from whyformer._explain.tower_choice import choose_tower
from whyformer._model import InputLike
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import MethodError, WhyformerError
from whyformer.methods._registry import METHODS
from whyformer.results.comparison import Comparison

MethodsLike: TypeAlias = Literal["quick", "all"] | MethodLike | Sequence[MethodLike]


@neutral_torch()
def compare(
    model: ModelLike,
    inputs: InputLike,
    methods: MethodsLike = "quick",
    *,
    target: TargetLike = None,
    versus: TargetLike = None,
) -> Comparison:
    """Several methods on the same inputs, from one run of the model.

    methods: names, functions or partials of them. "quick" takes every registered method that needs at most one pass of
    each kind; "all" adds those that run the model many times. With these two, methods that do not work on this model
    are listed in `failures` with the reason; a method that you name must work.
    """
    takes_any = isinstance(methods, str) and methods in ("quick", "all")
    registered = [name for name, method in METHODS.items() if method.is_quick or methods == "all"]
    calls = label_methods(registered if takes_any else as_method_list(methods))
    model = as_model(model)
    inputs, target = write_out(model, inputs, target)
    encoded, target = choose_tower(model, model.encode(inputs), target)
    run = partial(record_for_methods, model=model, encoded=encoded, target=target, versus=versus)
    captures = share_captures(list(calls.values()), run, tolerate=METHOD_FAILURES if takes_any else ())
    tolerate = (WhyformerError,) if takes_any else ()
    explanations, failures = explain_by_each(calls, captures, model, encoded, tolerate=tolerate)
    if not explanations:
        raise MethodError(f"No method works on {model.name}. {next(iter(failures.values()))}")
    return Comparison(explanations, {label: str(error) for label, error in failures.items()})


def as_method_list(methods: MethodLike | Sequence[MethodLike]) -> Sequence[MethodLike]:
    several = methods if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    if not several:
        raise MethodError("No methods to compare. Name at least one, or pass methods='all'.")
    return several
