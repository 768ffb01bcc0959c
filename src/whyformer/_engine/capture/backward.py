"""Backward passes from the explained score to the tracked tensors: plain gradients, or relevance under a recipe."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from whyformer._engine.capture.capture import AbsorbedRelevance
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.run.graph import TrackedTensors, compute_gradients, refuse_untracked
from whyformer._engine.targets.function_target import ExplainedScore
from whyformer._engine.tracing.provenance import attach_trace, trace_of

PlacedRelevance = dict[tuple[int, str], Tensor]  # (step, "token" or "position") -> relevance [batch token]


def run_backward(score: Tensor, tracked: TrackedTensors) -> dict[str, list[Tensor]]:
    """The gradient at each tracked tensor; zero where the score does not depend on it."""
    refuse_untracked(tracked)
    flat = [tensor for group in tracked.values() for tensor in group]
    gradients = compute_gradients(score, flat, retain_graph=True, allow_unused=True)
    filled = iter(
        attach_trace(torch.zeros_like(tensor) if gradient is None else gradient, trace_of(tensor))
        for tensor, gradient in zip(flat, gradients, strict=True)
    )
    return {name: [next(filled) for _ in group] for name, group in tracked.items()}


def run_direct_backward(score: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradient at the output of each attention along paths that do not pass through later attention."""
    refuse_untracked({"attention_output": list(outputs)})
    found = [torch.zeros_like(output) for output in outputs]

    def keep_and_stop(layer: int, gradient: Tensor) -> Tensor:
        found[layer] = gradient
        return torch.zeros_like(gradient)

    handles = [output.register_hook(partial(keep_and_stop, layer)) for layer, output in enumerate(outputs)]
    try:
        compute_gradients(score, outputs, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return found


def run_relevance_pass(
    answer: ExplainedScore, tracked: TrackedTensors, switch: Switch, recipe: Recipe, track_absorbed: bool
) -> tuple[dict[str, list[Tensor]], tuple[AbsorbedRelevance, ...], PlacedRelevance, RoundingError]:
    """A relevance pass: what arrives, what was absorbed on the way, how tokens and positions share it, and how much
    rounding can have moved it.

    For a contrast (`versus`) the two logits are propagated one after the other and then subtracted: rules divide by a
    total, and the total of a difference may be zero.
    """
    switch.recipe, switch.absorbed = recipe, {} if track_absorbed else None
    switch.rounding = rounding = RoundingError()
    target, versus = answer.start_relevance(recipe.sends)
    try:
        arrived = run_checked_backward(target, tracked, switch)
        absorbed, placed = switch.absorbed or {}, switch.placed or {}
        if versus is not None:
            switch.absorbed, switch.placed = {} if track_absorbed else None, None if switch.placed is None else {}
            switch.rounding = RoundingError()
            against = run_checked_backward(versus, tracked, switch)
            rounding = rounding.join(switch.rounding)
            # Not in place: where relevance passes unchanged, two tracked tensors share one result.
            arrived = {
                name: [attach_trace(a - b, trace_of(a)) for a, b in zip(arrived[name], against[name], strict=True)]
                for name in arrived
            }
            for ours, theirs in ((absorbed, switch.absorbed or {}), (placed, switch.placed or {})):
                for key, amount in theirs.items():
                    ours[key] = ours.get(key, 0) - amount
        taken = tuple(AbsorbedRelevance(what, step, amount) for (step, what), amount in sorted(absorbed.items()))
        return arrived, taken, placed, rounding
    finally:
        switch.rounding = None
        switch.recipe, switch.absorbed, switch.placed, switch.is_strict = None, None, None, False


def run_checked_backward(score: Tensor, tracked: TrackedTensors, switch: Switch) -> dict[str, list[Tensor]]:
    """As `run_backward`. If a result is not finite, run again so that the first operation to blame raises."""
    arrived = run_backward(score, tracked)
    if not all(bool(t.isfinite().all()) for group in arrived.values() for t in group):
        switch.is_strict, switch.rounding = True, None
        run_backward(score, tracked)
    return arrived
