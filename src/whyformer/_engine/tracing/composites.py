r"""Composite operations, written as the simpler operations they consist of, so that each of them can be seen.

The spellings of einsum, all brought into one: `einsum("ij,jk->ik", a, b)`.

torch also takes the factors in a list, a list of axes after each factor instead of an equation, and an equation without
its result, which then has the letters that occur once, in alphabetical order.

Mixtures of experts: products that use one matrix per expert, and sums over the experts of a token.

A mixture of experts sends token t to a few experts e, with the router's weights $g_{te}$:

    $y_t = \sum_e g_{te}\,f_e(x_t)$,  which runs as  $u = x_{[t]} W_{e}$ for the rows of each expert, and a sum of rows

Which experts a token goes to is a choice, not a number: it carries no relevance. Given the choice, both steps are
linear in the tokens, and the weights $g$ are the other factor of a product.

    _grouped_mm   $z_i = x_i W_{e(i)}$: the rows of one expert are a linear layer
    index_add     $z_{j} = c_j + \sum_{i:\,index(i) = j} x_i$: an addition, and a sum of rows

Recurrences (state spaces, linear attention): decays and transition systems are constants of a relevance pass.

A recurrent layer mixes tokens by $h_t = a_t h_{t-1} + b_t x_t$, and its parallel forms compute the decay between two
tokens as the exponential of a cumulative sum,

    $\prod_{s < r \le t} a_r = \exp(c_t - c_s)$,   $c_t = \sum_{r \le t} \log a_r$

or solve a triangular system $A u = v$ for the corrected values u. The decays and A play the part of attention weights:
given them, the layer is linear in the tokens. In a relevance pass they are constants, and the other factor gets all
relevance, as MambaLRP does with the parameters of a state space (Jafari, Montavon, Müller & Eberle, NeurIPS 2024,
arXiv:2406.07592). A secant of the exponential would not do: $c_t - c_t$ is zero, and there is no line from zero to
$\exp(0) = 1$. The recipes do not differ here. Gradients are not affected. Recurrences that run token by token have no
cumulative sum. Where they compute $a_t = \exp(A\,\Delta_t)$ with constants A (Mamba, RecurrentGemma), that is a decay
too; halved at every step like a factor of any product, relevance would fall by $2^{-d}$ over a distance d.

The same holds for an attention sink that scales the output of attention by $\sigma(\log\sum_j \exp q_j - sink)$: the
sum is the denominator of the softmax, and part of its weights.

Rotary embeddings written with complex numbers, as the same rotation in real numbers.

$(a + bi)(\cos\theta + i\sin\theta)$ has the real part $a\cos\theta - b\sin\theta$ and the imaginary part
$a\sin\theta + b\cos\theta$. Relevance of a complex number means nothing; of the two real ones it does.
"""

import types
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.follow import label_rows
from whyformer._engine.tracing.fused_attention import read_fused_arguments
from whyformer._engine.tracing.operations import FUSED_ATTENTION, Operation
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of
from whyformer._plain.private_torch import without_interception

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


def split_diff(operation: Operation) -> Tensor | None:
    """`diff` as a difference; None if it is taken several times."""
    x, axis = operation.argument(0, "input"), operation.argument(2, "dim", default=-1)
    ends = (operation.argument(3, "prepend"), operation.argument(4, "append"))
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    if operation.argument(1, "n", default=1) != 1:
        return None
    whole = torch.cat(parts, axis) if len(parts) > 1 else x
    count = whole.size(axis) - 1
    return whole.narrow(axis, 1, count) - whole.narrow(axis, 0, count)


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


# --- spellings of einsum ----------------------------------------------------------------------------------------------


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def spell_out_einsum(operation: Operation) -> Operation:
    """The same call with an equation that names its result, and with each factor an argument."""
    equation, *factors = operation.args
    if isinstance(equation, Tensor):
        equation, factors = read_axis_lists(operation.args)
    elif len(factors) == 1 and isinstance(factors[0], list | tuple):
        factors = list(factors[0])
    if "->" not in equation:
        equation = f"{equation}->{find_result_letters(equation)}"
    return replace(operation, args=(equation, *factors))


def read_axis_lists(args: tuple[Any, ...]) -> tuple[str, list[Tensor]]:
    """`einsum(a, [0, 1], b, [1, 2], [0, 2])` as an equation and its factors."""

    def spell(axes: Sequence[int]) -> str:
        return "".join("..." if axis is Ellipsis else LETTERS[axis] for axis in axes)

    count = len(args) // 2
    factors, axes = list(args[: 2 * count : 2]), args[1 : 2 * count : 2]
    equation = ",".join(spell(axis) for axis in axes)
    return (f"{equation}->{spell(args[-1])}" if len(args) % 2 else equation), factors


def find_result_letters(equation: str) -> str:
    """The letters that occur once, in order; axes of `...` come first."""
    counts = Counter(equation.replace("...", "").replace(",", "").replace(" ", ""))
    return ("..." if "..." in equation else "") + "".join(sorted(letter for letter, n in counts.items() if n == 1))


# --- mixtures of experts ----------------------------------------------------------------------------------------------


def chooses_weights(read: Tensor, numbers: Sequence[Tensor]) -> bool:
    """Whether numbers choose what was read: one for the whole batch, or a matrix for each. Codes read vectors."""
    axes = max((number.dim() for number in numbers), default=0)
    return axes == 0 or read.dim() - axes > 1


def split_by_expert(operation: Operation) -> Tensor | None:
    """A grouped product as one linear layer per expert; None if the matrices depend on the input."""
    x, weights = operation.argument(0, "input", "self", "mat_a"), operation.argument(1, "weight", "mat2", "mat_b")
    ends = operation.argument(2, "offs")
    if ends is None or weights.requires_grad or x.dim() != 2 or weights.dim() != 3:
        return None
    with without_interception():
        ends = ends.tolist()
    starts = [0, *ends[:-1]]
    rows = [
        F.linear(x[start:end], weight.t())
        for start, end, weight in zip(starts, ends, weights, strict=True)
        if end > start
    ]
    if ends[-1] < len(x):  # rows of experts on another machine
        rows.append(x.new_zeros(len(x) - ends[-1], weights.size(-1)))
    return torch.cat(rows)


def split_row_sum(operation: Operation) -> Tensor | None:
    """`index_add` or `scatter_add` as a sum of rows and an addition; None if it adds to zeros already."""
    start = operation.argument(0, "input", "self")
    with without_interception():
        if not start.requires_grad and not bool(start.any()):
            return None
        zeros = torch.zeros_like(start)
    summed = operation.function(zeros, *operation.args[1:], **operation.kwargs)
    rows = merge_rows(trace_of(start).rows, trace_of(summed).rows)
    if rows is not None:
        for tensor in (start, summed):
            attach_trace(tensor, replace(label_rows(rows), depends=True))
    total = start + summed
    return total if rows is None else attach_trace(total, replace(trace_of(total), rows=rows))


def merge_rows(before: Trace | None, added: Trace | None) -> Trace | None:
    """The labels of the rows that either of two sums has; -1 where neither has any."""
    if before is None or added is None or before.samples is None or added.samples is None:
        return None
    tokens = None
    with without_interception():
        samples = torch.where(added.samples >= 0, added.samples, before.samples)
        if before.tokens is not None and added.tokens is not None:
            tokens = torch.where(added.tokens >= 0, added.tokens, before.tokens)
    return Trace(samples, tokens, max(before.epoch, added.epoch))


EXPERT_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "_grouped_mm": split_by_expert,
    "grouped_mm": split_by_expert,
    "grouped_mm_fallback": split_by_expert,
    "index_add": split_row_sum,
    "scatter_add": split_row_sum,
}


# --- recurrences ------------------------------------------------------------------------------------------------------


SYSTEMS = {"linalg_solve_triangular": 0}  # operation -> which argument is the matrix


def starts_constant(operation: Operation, trace: Trace) -> bool:
    """Whether the result is constant in a relevance pass: the exponential of a cumulative sum or of a rate, or a
    logsumexp that normalises nothing by itself."""
    if operation.name == "logsumexp":
        return not trace.is_statistic
    given = trace_of(operation.given[0])
    return operation.name == "exp" and (given.is_cumulative or given.is_rate)


def detach_constants(operation: Operation) -> Operation:
    """The operation with detached copies of what is constant in a relevance pass."""
    constants = [t for t in operation.given if trace_of(t).is_detached and t.requires_grad]
    if operation.name in SYSTEMS and operation.args[SYSTEMS[operation.name]].requires_grad:
        constants.append(operation.args[SYSTEMS[operation.name]])
    if not constants:
        return operation
    copies = {id(tensor): attach_trace(tensor.detach(), trace_of(tensor)) for tensor in constants}
    return operation.map_arguments(lambda value: copies.get(id(value), value))


# --- rotary embeddings in complex numbers -----------------------------------------------------------------------------


def remember_pairs(pairs: Tensor) -> Tensor:
    """`view_as_complex`: the complex numbers remember the pairs that they were made of."""
    with without_interception():
        numbers = torch.view_as_complex(pairs.contiguous())
    numbers._whyformer_pairs = pairs  # type: ignore[attr-defined]
    return numbers


def rotate_pairs(operation: Operation) -> Tensor | None:
    """A product with complex constants, on the pairs; None if there are no pairs."""
    first, second = operation.argument(0, "input", "self"), operation.argument(1, "other")
    x, factor = (second, first) if getattr(first, "_whyformer_pairs", None) is None else (first, second)
    pairs = getattr(x, "_whyformer_pairs", None)
    if pairs is None or not isinstance(factor, Tensor) or not factor.is_complex() or factor.requires_grad:
        return None
    a, b = pairs.unbind(-1)
    cosine, sine = factor.real, factor.imag
    return remember_pairs(torch.stack((a * cosine - b * sine, a * sine + b * cosine), -1))


def read_pairs(operation: Operation) -> Tensor | None:
    """`view_as_real` of numbers that remember their pairs."""
    return getattr(operation.argument(0, "input", "self"), "_whyformer_pairs", None)


COMPLEX_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "view_as_complex": lambda operation: remember_pairs(operation.argument(0, "input", "self")),
    "mul": rotate_pairs,
    "view_as_real": read_pairs,
}


# Each returns None where the operation can stay as it is.
COMPOSITE_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "addmm": split_addmm,
    "baddbmm": split_addmm,
    "diff": split_diff,
    "dropout": split_dropout,
    "glu": split_glu,
    "gru_cell": split_gru_cell,
    "lerp": split_lerp,
    FUSED_ATTENTION: split_biased_attention,
    **EXPERT_OPERATIONS,
    **COMPLEX_OPERATIONS,
}
