"""Composite operations, written as the simpler operations they consist of, so that each of them can be seen."""

import types
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.experts import EXPERT_OPERATIONS
from whyformer._engine.tracing.fused_attention import read_fused_arguments
from whyformer._engine.tracing.operations import FUSED_ATTENTION, Operation
from whyformer._engine.tracing.provenance import trace_of
from whyformer._engine.tracing.rotations import COMPLEX_OPERATIONS

P = ParamSpec("P")
R = TypeVar("R")


def copy_without_overrides(function: Callable[P, R]) -> Callable[P, R]:
    """`F.multi_head_attention_forward` with globals in which nothing is overridden, so that the mode sees what it does.

    Under a mode that function dispatches itself as one opaque call. Changing the module's globals instead would affect
    other threads.
    """
    plain = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copy = types.FunctionType(function.__code__, plain, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


multi_head_attention = copy_without_overrides(F.multi_head_attention_forward)


def split_glu(operation: Operation) -> Tensor:
    """`glu` as a product."""
    x, axis = operation.argument(0, "input"), operation.argument(1, "dim", default=-1)
    kept, gate = x.chunk(2, axis)
    return kept * torch.sigmoid(gate)


def split_lerp(operation: Operation) -> Tensor:
    """`lerp` as a weighted sum."""
    start, end = operation.argument(0, "input"), operation.argument(1, "end")
    weight = operation.argument(2, "weight")
    return start * (1 - weight) + end * weight


def split_addmm(operation: Operation) -> Tensor:
    """`addmm` and `baddbmm` as a product and an addition."""
    names = ("mat1", "mat2") if operation.name == "addmm" else ("batch1", "batch2")
    added = operation.argument(0, "input")
    first, second = (operation.argument(index, name) for index, name in enumerate(names, 1))
    alpha, beta = (operation.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if operation.name == "addmm" and not second.requires_grad and alpha == beta == 1 and added.dim() == 1:
        return F.linear(first, second.t(), added)
    product = torch.matmul(first, second)
    product = product * alpha if alpha != 1 else product
    if beta == 0:  # torch then ignores the added tensor, even if it contains NaN
        return product
    return product + (added * beta if beta != 1 else added)


def split_dropout(operation: Operation) -> Tensor | None:
    """`dropout` that stays on, as a product with what it draws; None where it is off, and of attention."""
    x, share = operation.argument(0, "input"), operation.argument(1, "p", default=0.5)
    is_on = operation.argument(2, "training", default=operation.kwargs.get("train", True))
    if not is_on or not share or operation.argument(3, "inplace", default=False) or trace_of(x).is_attention:
        return None
    return x * F.dropout(torch.ones_like(x.detach()), share, training=True)


def split_biased_attention(operation: Operation) -> Tensor | None:
    """Fused attention with a bias that depends on the input, step by step; None with any other mask."""
    given = read_fused_arguments(operation)
    mask = given.mask.given
    if mask is None or not mask.requires_grad:
        return None
    key, value = given.repeat_heads()
    return torch.matmul((torch.matmul(given.query, key.mT) * given.scale + mask).softmax(-1), value)


def split_gru_cell(operation: Operation) -> Tensor:
    """`gru_cell` as its gates: a weighted sum of the old state and of a new one."""
    x, state, of_x, of_state = (operation.argument(i, name) for i, name in enumerate(("input", "hx", "w_ih", "w_hh")))
    biases = (operation.argument(4, "b_ih"), operation.argument(5, "b_hh"))
    reset_x, update_x, new_x = F.linear(x, of_x, biases[0]).chunk(3, -1)
    reset_state, update_state, new_state = F.linear(state, of_state, biases[1]).chunk(3, -1)
    kept = torch.sigmoid(update_x + update_state)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_state) * new_state)
    return new * (1 - kept) + state * kept


# Each returns None where the operation can stay as it is.
COMPOSITE_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "addmm": split_addmm,
    "baddbmm": split_addmm,
    "dropout": split_dropout,
    "glu": split_glu,
    "gru_cell": split_gru_cell,
    "lerp": split_lerp,
    FUSED_ATTENTION: split_biased_attention,
    **EXPERT_OPERATIONS,
    **COMPLEX_OPERATIONS,
}
