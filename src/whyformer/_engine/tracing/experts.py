r"""Mixtures of experts: products that use one matrix per expert, and sums over the experts of a token.

A mixture of experts sends token t to a few experts e, with the router's weights $g_{te}$:

    $y_t = \sum_e g_{te}\,f_e(x_t)$,  which runs as  $u = x_{[t]} W_{e}$ for the rows of each expert, and a sum of rows

Which experts a token goes to is a choice, not a number: it carries no relevance. Given the choice, both steps are
linear in the tokens, and the weights $g$ are the other factor of a product.

    _grouped_mm   $z_i = x_i W_{e(i)}$: the rows of one expert are a linear layer
    index_add     $z_{j} = c_j + \sum_{i:\,index(i) = j} x_i$: an addition, and a sum of rows
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.follow import label_rows
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of
from whyformer._plain.private_torch import without_interception


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
