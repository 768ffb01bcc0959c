r"""Block boundaries from the residual stream, for models whose blocks are no modules.

$$ x_l \;\to\; x_l + \mathrm{attention}_l(x_l) \;\to\; \dots \;\to\; x_{l+1} $$

$x_l$ is the state that the output of attention $l$ is added to. It is found among the additions of the forward: one
addend depends on the attention, the other is a state from before it from which the attention was computed. The last
boundary is where the stream ends: the last sum that has the sum before it as an addend. In a model that normalises
after each addition (BERT), an addend is the norm of the sum before it, and the stream ends with a norm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from torch import Tensor
from torch.autograd.graph import Node

from whyformer._engine.run import Intercept, StreamStep
from whyformer._engine.tracing import AttentionSite, find_layer_sites, trace_of


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
