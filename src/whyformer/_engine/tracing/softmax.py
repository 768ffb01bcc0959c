r"""A softmax that the model writes out, step by step.

$$ a = \frac{e^{x - m}}{c + \sum_k e^{x_k - m}} = \exp\Big(x - \log \sum_k e^{x_k}\Big) $$

with any shift $m$ that is the same for all keys, and $c = 0$ for a softmax; $c > 0$ is softmax-one and the like. Each
tensor between has the scores that it comes from and its stage: `shifted` $x - m$, `exponential`, `total`, `inverse` of
the total, `log_total`, `log_weights`. The last step, a division or an `exp`, gives `weights`, which are attention
like the result of `torch.softmax`. Relevance then takes the rule for a softmax from the weights to the scores and skips
what is between them.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import SoftmaxStep, Trace, change_trace, trace_of


def step_of(value: Argument, *stages: str) -> SoftmaxStep | None:
    """What is known of a tensor as a step of a softmax, if it is at one of these stages."""
    step = trace_of(value).softmax
    return step if step is not None and step.stage in stages else None


def scores_of(tensor: Tensor) -> Tensor:
    """The scores without a shift."""
    step = step_of(tensor, "shifted")
    return tensor if step is None else step.scores


def mark_softmax(operation: Operation, result: Tensor, trace: Trace) -> Trace:
    """The trace of a result, with its stage if it is a step of a softmax."""
    follow = STEPS.get(operation.name)
    step = follow(operation, result) if follow is not None else None
    if step is None:
        return trace
    return change_trace(trace, softmax=step, is_attention=trace.is_attention or step.stage == "weights")


def follow_subtraction(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    x, taken = operation.argument(0, "input"), operation.argument(1, "other")
    if operation.kwargs.get("alpha", 1) != 1 or not (isinstance(x, Tensor) and isinstance(taken, Tensor)):
        return None
    if result.shape != x.shape or result.dim() < 2 or (axis := find_shared_axis(taken, x)) is None:
        return None
    total = step_of(taken, "log_total")
    if total is not None and total.scores is scores_of(x):
        return SoftmaxStep("log_weights", total.scores, axis)
    is_shift = trace_of(taken).is_statistic or not trace_of(taken).depends
    return SoftmaxStep("shifted", scores_of(x), axis) if is_shift else None


def find_shared_axis(constant: Tensor, x: Tensor) -> int | None:
    """The axis, counted from the end, along which one number is used for all entries of x; None if not exactly one."""
    sizes = [constant.size(-i) if i <= constant.dim() else 1 for i in range(1, x.dim() + 1)]
    shared = [-i for i, size in enumerate(sizes, 1) if size == 1 < x.size(-i)]
    return shared[0] if len(shared) == 1 else None


def follow_exp(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    x = operation.given[0]
    if (step := step_of(x, "log_weights")) is not None:
        return replace(step, stage="weights")
    return SoftmaxStep("exponential", scores_of(x)) if result.dim() >= 2 else None


def follow_total(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """A sum of exponentials, its logarithm, or the logarithm of the weights, over one axis."""
    x, axis = operation.given[0], operation.argument(1, "dim", "axis")
    axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
    if not isinstance(axis, int):
        return None
    axis = axis if axis < 0 else axis - x.dim()
    if operation.name == "sum":
        step = step_of(x, "exponential")
        return None if step is None else replace(step, stage="total", axis=axis)
    return SoftmaxStep("log_total" if operation.name == "logsumexp" else "log_weights", scores_of(x), axis)


def follow_inverse(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """The logarithm or the reciprocal of a total."""
    step, is_log = step_of(operation.given[0], "total"), operation.name == "log"
    if step is None or (is_log and not step.is_plain):
        return None
    return replace(step, stage="log_total" if is_log else "inverse")


def follow_new_axis(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """`total[..., None]` and the like: the axis that was summed over is put back."""
    step = step_of(operation.given[0], "total", "inverse", "log_total")
    return step if step is not None and result.numel() == operation.given[0].numel() else None


def follow_addition(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """A total plus something per query, such as 1 or a small number."""
    for tensor in operation.given:
        if (step := step_of(tensor, "total")) is not None and tensor.shape == result.shape:
            return replace(step, is_plain=False)
    return None


def follow_same(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """Casts and the like keep the stage; a mask that sets exponentials to zero, too."""
    kept = step_of(operation.given[0], "exponential", "total", "inverse", "log_total", "shifted")
    if kept is None or (result.shape != operation.given[0].shape):
        return None
    is_mask = operation.name in ("masked_fill", "where", "tril", "triu")
    return replace(kept, is_plain=kept.is_plain and not is_mask)


def follow_multiplication(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    x, y = operation.argument(0, "input"), operation.argument(1, "other")
    for one, other in ((x, y), (y, x)):
        exponential, inverse = step_of(one, "exponential"), step_of(other, "inverse")
        if exponential is None:
            continue
        if inverse is not None and inverse.scores is exponential.scores:
            return join_steps(exponential, inverse, result)
        if not trace_of(other).depends and result.shape == one.shape:
            return replace(exponential, is_plain=False)
    return None


def follow_division(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    x, divisor = operation.argument(0, "input"), operation.argument(1, "other")
    if operation.name.startswith("r"):
        x, divisor = divisor, x
    total, exponential = step_of(divisor, "total"), step_of(x, "exponential")
    if total is not None and (not isinstance(x, Tensor) or (x.numel() == 1 and not trace_of(x).depends)):
        return replace(total, stage="inverse")
    return join_steps(exponential, total, result)


def follow_undivided(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """exponentials @ values; divided by the total, this is the output of an attention."""
    first, second = operation.args[:2] if len(operation.args) > 1 else (None, None)
    step = step_of(first, "exponential")
    if step is None or not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.dim() < 3:
        return None
    return replace(step, stage="undivided", factors=(first, second))


def follow_normalize(operation: Operation, result: Tensor) -> SoftmaxStep | None:
    """`F.normalize(exponentials, p=1)`."""
    step = step_of(operation.given[0], "exponential")
    axis = operation.argument(2, "dim", default=1)
    if step is None or operation.argument(1, "p", default=2.0) != 1 or not isinstance(axis, int):
        return None
    return replace(step, stage="weights", axis=axis if axis < 0 else axis - result.dim())


def join_steps(exponential: SoftmaxStep | None, total: SoftmaxStep | None, result: Tensor) -> SoftmaxStep | None:
    """The weights, if exponentials and total are of the same scores, and have their shape."""
    if exponential is None or total is None or exponential.scores is not total.scores:
        return None
    if result.shape != exponential.scores.shape:
        return None
    return replace(total, stage="weights", is_plain=exponential.is_plain and total.is_plain)


STEPS: dict[str, Callable[[Operation, Tensor], SoftmaxStep | None]] = {
    **dict.fromkeys(("sub", "subtract"), follow_subtraction),
    **dict.fromkeys(("add", "radd", "clamp", "clamp_min", "clip"), follow_addition),
    **dict.fromkeys(("exp", "exp_"), follow_exp),
    **dict.fromkeys(("mul", "rmul", "multiply"), follow_multiplication),
    **dict.fromkeys(operations.DIVISIONS, follow_division),
    **dict.fromkeys(operations.IDENTITIES, follow_same),
    **dict.fromkeys(("unsqueeze", "getitem", "view", "reshape", "expand", "expand_as"), follow_new_axis),
    **dict.fromkeys(("sum", "logsumexp", "log_softmax"), follow_total),
    **dict.fromkeys(("log", "reciprocal"), follow_inverse),
    **dict.fromkeys(("matmul", "bmm"), follow_undivided),
    "normalize": follow_normalize,
}


def divide_before_product(operation: Operation) -> Callable[[], Tensor] | None:
    """(e @ v) / total as (e / total) @ v, so that the weights exist; None for any other operation."""
    if operation.name not in operations.DIVISIONS or operation.name.startswith("r") or len(operation.args) < 2:
        return None
    product, total, divisor = (
        step_of(operation.args[0], "undivided"),
        step_of(operation.args[1], "total"),
        operation.args[1],
    )
    if product is None or total is None or product.scores is not total.scores:
        return None
    exponentials, values = product.factors
    if divisor.dim() != exponentials.dim():
        return None
    return lambda: torch.matmul(exponentials / divisor, values)
