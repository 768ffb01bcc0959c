"""Several methods from one run of the model; where they cannot share a run, one run per set of needs.

    captures = share_captures(list(calls.values()), run, tolerate=(ModelError,))
    explanations, failures = explain_by_each(calls, captures, model, encoded, tolerate=(WhyformerError,))

`tolerate` lists the errors that fail one method only. All others stop everything, and so does running out of memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from whyformer._engine import Capture, Recipe, RunRequest, TargetLike, run_request
from whyformer._explain.conditioning import measure_conditioning
from whyformer._explain.conservation import REQUIRED_SITES
from whyformer._explain.method_call import MethodCall
from whyformer._explain.precision import convert_precision
from whyformer._explain.repeated_runs import average_runs
from whyformer._explain.scoring import make_epilogue, make_explanation
from whyformer._explain.unforeseen import report_own_bugs
from whyformer._model import EncodedBatch, Model
from whyformer.errors import ModelError, NonFinite, NotCaptured, ResourceError, WhyformerError
from whyformer.results.explanation import Explanation

ErrorTypes = tuple[type[Exception], ...]
METHOD_FAILURES: ErrorTypes = (ModelError, NotCaptured, NonFinite)  # a run failed because of what a method needs


def record_for_methods(
    calls: Sequence[MethodCall],
    model: Model,
    encoded: EncodedBatch,
    target: TargetLike,
    versus: TargetLike,
    extra_sites: Collection[str] = (),
) -> Capture:
    """Run the model once and capture what all these methods need, plus `extra_sites`. They share one precision."""
    if calls[0].precision is not None:
        model, encoded = convert_precision(model, encoded, calls[0].precision)
    keep = {need for call in calls for need in call.needs} | set(extra_sites)
    recipes = list(dict.fromkeys(call.recipe for call in calls if call.recipe))
    wants_health = any(call.wants_health for call in calls)
    request = RunRequest(
        model,
        encoded,
        frozenset(keep.union(REQUIRED_SITES) if wants_health else keep),
        target,
        versus,
        tuple(recipes),
        track_absorbed=wants_health,
        epilogue=None if extra_sites else make_epilogue(calls),
    )
    with report_own_bugs(model):
        return run_request(request)


def share_captures(
    calls: Sequence[MethodCall],
    run: Callable[[Sequence[MethodCall]], Capture],
    *,
    tolerate: ErrorTypes = METHOD_FAILURES,
) -> list[Capture | Exception]:
    """The capture to compute each method from: one for each precision, or, if that fails, one for each set of needs.

    A method whose own run fails gets the error instead.
    """
    shared = {
        precision: iter(share_capture([call for call in calls if call.precision == precision], run, tolerate))
        for precision in dict.fromkeys(call.precision for call in calls)
    }
    return [next(shared[call.precision]) for call in calls]


def share_capture(
    calls: Sequence[MethodCall], run: Callable[[Sequence[MethodCall]], Capture], tolerate: ErrorTypes
) -> list[Capture | Exception]:
    """As `share_captures`, for methods that run in one precision."""
    try:
        return [run(calls)] * len(calls)
    except tolerate as error:
        raise_if_out_of_memory(error)
    own_failures: ErrorTypes = (WhyformerError, *tolerate)
    captures: dict[tuple[tuple[str, ...], Recipe | None, bool], Capture | Exception] = {}
    keys = [(call.needs, call.recipe, call.wants_health) for call in calls]  # methods with the same can share a run
    for key, call in zip(keys, calls, strict=True):
        if key not in captures:
            try:
                captures[key] = run([call])
            except own_failures as error:
                raise_if_out_of_memory(error)
                captures[key] = error
    return [captures[key] for key in keys]


def explain_by_call(call: MethodCall, model: Model, encoded: EncodedBatch, capture: Capture) -> Explanation:
    """The explanation by one method; with samples=, the mean over runs with other random numbers; with health=True,
    also how much one rounding changes it, from a second run."""
    with report_own_bugs(model):
        explanation = make_explanation(call, model, encoded, capture)
    if call.samples == 1 and (not call.wants_health or call.recipe is None):
        return explanation
    once_more = replace(call, wants_health=False, samples=1)
    targets, versus = capture.same_target

    def explain_again(moved: Model, inputs: EncodedBatch) -> Explanation:
        rerun = record_for_methods([once_more], moved, inputs, targets, versus)
        return make_explanation(once_more, moved, inputs, rerun)

    if call.samples > 1:
        explanation = average_runs(partial(explain_again, model, encoded), explanation, model, call.samples)
    if not call.wants_health or call.recipe is None:
        return explanation
    own, inputs = convert_precision(model, encoded, call.precision)
    return explanation.with_conditioning(measure_conditioning(explain_again, own, inputs, explanation))


def explain_by_each(
    calls: Mapping[str, MethodCall],
    captures: Sequence[Capture | Exception],
    model: Model,
    encoded: EncodedBatch,
    *,
    tolerate: ErrorTypes,
) -> tuple[dict[str, Explanation], dict[str, Exception]]:
    """The explanation by each method, and the errors of the methods that failed; both by label."""
    explanations: dict[str, Explanation] = {}
    failures: dict[str, Exception] = {}
    for (label, call), capture in zip(calls.items(), captures, strict=True):
        try:
            if isinstance(capture, Exception):
                raise capture
            explanations[label] = explain_by_call(call, model, encoded, capture)
        except tolerate as error:
            raise_if_out_of_memory(error)
            failures[label] = error
    return explanations, failures


def raise_if_out_of_memory(error: Exception) -> None:
    """Running out of memory says nothing about a method or an example, so it must stop the run."""
    if isinstance(error, MemoryError | ResourceError) or type(error).__name__ == "OutOfMemoryError":
        raise error
