"""Boundaries between blocks that add to no residual stream: gates (GRU), spheres (nViT), several streams at once.

A boundary is then a state that all of the answer passes: without it, no path of the graph leads from the answer to the
explained input. Of several between two attentions, the last is what the second one begins with.
"""

from itertools import pairwise

from torch import Tensor
from torch.autograd.graph import Node

from whyformer._engine.run import Intercept
from whyformer._engine.tracing import find_layer_sites, trace_of


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
