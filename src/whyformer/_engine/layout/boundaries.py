r"""Block boundaries from the residual stream, for models whose blocks are no modules.

$$ x_l \;\to\; x_l + \mathrm{attention}_l(x_l) \;\to\; \dots \;\to\; x_{l+1} $$

$x_l$ is the state that the output of attention $l$ is added to. It is found among the additions of the forward: one
addend depends on the attention, the other is a state from before it from which the attention was computed. The last
boundary is where the stream ends: the last sum that has the sum before it as an addend. In a model that normalises
after each addition (BERT), an addend is the norm of the sum before it, and the stream ends with a norm.

Boundaries between blocks that add to no residual stream: gates (GRU), spheres (nViT), several streams at once.

A boundary is then a state that all of the answer passes: without it, no path of the graph leads from the answer to the
explained input. Of several between two attentions, the last is what the second one begins with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from torch import Tensor
from torch.autograd.graph import Node

from whyformer._engine.run.intercept import Intercept, StreamStep
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.provenance import trace_of


@dataclass(frozen=True)
class ResidualAddition:
    """Where the output of an attention is added to the state."""

    state: Tensor  # before the addition
    total: Tensor
    step: int


def find_residual_additions(mode: Intercept) -> list[ResidualAddition] | None:
    """The addition of each layer; None if a layer has none."""
    sites = find_layer_sites(mode.sites)
    found = []
    for site, following in zip_longest(sites, sites[1:]):
        until = mode.step + 1 if following is None else following.step
        between = [s for s in mode.stream if s.kind == "add" and site.step < s.step < until]
        additions = [a for step in between if (a := read_addition(step, site, mode)) is not None]
        if not additions:
            return None
        found.append(additions[-1])
    return found


def read_addition(step: StreamStep, site: AttentionSite, mode: Intercept) -> ResidualAddition | None:
    """The step as the addition of this site's output to the state, if it is one."""
    for output, addend in (step.operands, step.operands[::-1]):
        if trace_of(output).epoch != site.epoch or trace_of(addend).epoch >= site.epoch:
            continue
        for state in (addend, *find_unscaled(mode, addend)):
            if getattr(state, "_whyformer_step", 0) < site.step and is_ancestor(state, site.output):
                return ResidualAddition(state, step.result, step.step)
    return None


def find_unscaled(mode: Intercept, tensor: Tensor) -> list[Tensor]:
    """The state that this one is a multiple of, as in DeepNorm; empty if it is none."""
    return [step.operands[0] for step in mode.stream if step.kind == "scale" and step.result is tensor]


def is_ancestor(tensor: Tensor, of: Tensor) -> bool:
    """Whether one tensor was computed from another; True if there is no graph to tell."""
    if tensor.grad_fn is None or of.grad_fn is None:
        return tensor.grad_fn is None and of.grad_fn is None
    seen: set[Node] = set()
    waiting: list[Node] = [of.grad_fn]
    while waiting:
        node = waiting.pop(0)
        if node is tensor.grad_fn:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def find_stream_boundaries(mode: Intercept, additions: Sequence[ResidualAddition]) -> tuple[list[Tensor], list[int]]:
    """The states at the boundaries, one more than there are layers, and the step of each."""
    states = [addition.state for addition in additions]
    end = find_end(mode, additions)
    states.append(end)
    return states, [getattr(state, "_whyformer_step", 0) for state in states]


def find_end(mode: Intercept, additions: Sequence[ResidualAddition]) -> Tensor:
    """The state that leaves the last layer."""
    state = additions[-1].total
    totals = {id(step.result) for step in mode.stream if step.kind == "add"}
    normalises_after = any(id(addition.state) not in totals for addition in additions[1:])
    for step in mode.stream:
        if step.kind != "add" or step.step <= additions[-1].step or step.result.shape != state.shape:
            continue
        addends = [t for operand in step.operands for t in (operand, *find_unscaled(mode, operand))]
        if any(addend is state for addend in addends):
            state = step.result
        elif any(addend is norm for addend in addends for norm in find_norms(mode, state)):
            state, normalises_after = step.result, True
    return next(find_norms(mode, state), state) if normalises_after else state


def find_norms(mode: Intercept, state: Tensor) -> Iterator[Tensor]:
    """What normalises this state: a norm of torch, or a module that takes it and has no attention."""
    for step in mode.stream:
        if step.kind == "norm" and step.operands[0] is state:
            yield step.result
    for call in mode.calls:
        if call.input is state and call.output is not None and call.output.shape == state.shape and not call.sites:
            yield call.output


# --- bottlenecks ------------------------------------------------------------------------------------------------------


def find_bottlenecks(mode: Intercept) -> tuple[list[Tensor], list[int]] | None:
    """The last such state before each attention, and the last of all, with the step of each; None if one is missing."""
    sites, answer = find_layer_sites(mode.sites), mode.answer
    if mode.entered is None or answer is None or not answer.requires_grad or not sites:
        return None
    passed = [state for state in list_states(mode) if is_passed_by_all(state, answer, mode.leaves)]
    found: list[Tensor] = []
    for before, site in pairwise([None, *sites]):
        between = [s for s in passed if (before is None or find_step(s) > before.step) and find_step(s) < site.step]  # type: ignore[union-attr]
        if not between:
            return None
        found.append(between[-1])
    after = [state for state in passed if find_step(state) > sites[-1].step and state.shape == found[-1].shape]
    return ([*found, after[-1]], [find_step(state) for state in (*found, after[-1])]) if after else None


def list_states(mode: Intercept) -> list[Tensor]:
    """What modules take and return that has tokens and depends on the input, in the order in which it was made."""
    taken = [tensor for call in mode.calls for tensor in (call.input, call.output)]
    given = [getattr(t, "_whyformer_leaf", t) for t in (*taken, mode.last_state) if t is not None]
    states = {id(t): t for t in given if t.requires_grad and t.dim() >= 3 and trace_of(t).tokens is not None}
    return sorted(states.values(), key=find_step)


def find_step(state: Tensor) -> int:
    return getattr(state, "_whyformer_step", 0)


def is_passed_by_all(state: Tensor, answer: Tensor, leaves: list[Tensor]) -> bool:
    """Whether every path of the graph from the answer to the input passes this state."""
    seen: set[Node | None] = {state.grad_fn, None}
    waiting: list[Node | None] = [answer.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if any(getattr(node, "variable", None) is leaf for leaf in leaves):
            return False
        waiting.extend(following for following, _ in node.next_functions)  # type: ignore[union-attr]
    return True
