r"""Rules that pass slopes back: a gradient in which a few operations are held constant, halved or made linear.

Relevance is $R = x \odot s$ with the slope s. Where an operation is linear, its true gradient is the proportional rule:
with $y = xW + b$ and $s_x = s_y W^\top$,

    $R_j = \sum_i \frac{x_j w_{ji}}{y_i} R_i = x_j \sum_i w_{ji}\,s_i$

without any division. Only operations that are not linear need a rule:

    activation  $y = f(x)$          the secant: $s_x = s_y\,f(x) / x$, so that $R_x = R_y$
    norm        $y = (x - m)/\sigma$    $\sigma$ is held constant, the mean is not
    product     $y = a b$           each factor gets half; or one factor is held constant and the other gets all
    softmax     its gradient        $R_x = x \odot (R - \mathrm{softmax}(x) \sum R)$ (the difference is absorbed)

A rule that returns None lets the true gradient pass. Biases, constants and the remainder of a softmax absorb their
shares, which the conservation check reports.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer._engine.relevance.calls import (
    ActivationCall,
    AdditionCall,
    JoinCall,
    LinearCall,
    NormaliseCall,
    NormCall,
    OperationCall,
    ProductCall,
    ScaleCall,
    Shares,
    SoftmaxCall,
    act_on_rows,
    transpose_linear,
    undo_broadcast,
)
from whyformer._engine.relevance.rules import keep_constant_parts
from whyformer._engine.tracing.provenance import Trace, axis_of

# --- linear operations -----------------------------------------------------------------------------------------------


def pass_gradient(call: OperationCall, slope: Tensor) -> None:
    """A linear operation without constants: the true gradient."""


def pass_linear_slope(call: LinearCall, slope: Tensor) -> None:
    """A linear layer: the true gradient. The bias absorbs its share."""
    if (bias := call.bias) is not None:
        call.absorb("biases", lambda: slope * bias)


def pass_bias_slope(call: AdditionCall, slope: Tensor) -> None:
    """A bias was added: the true gradient. The bias absorbs its share."""
    constant = call.constant
    assert constant is not None
    call.absorb(call.constant_is, lambda: slope * constant)


def pass_joined_slope(call: JoinCall, slope: Tensor) -> None:
    """A concatenation: the true gradient. Constant parts (a class token) absorb their share."""
    call.absorb("class token and other constants", lambda: keep_constant_parts(call, slope * call.result))


@act_on_rows
def pass_addition_slope(call: AdditionCall, slope: Tensor) -> Shares:
    """u + v: both get the slope of the sum. A constant (a position, an attention bias) absorbs its share."""
    if len(call.operands) == 1:
        constant = call.constant
        assert isinstance(constant, Tensor)
        call.absorb(call.constant_is, lambda: multiply_slope(slope, constant))
        record_placed(call, call.positions, "position", lambda: multiply_slope(slope, constant))
        record_placed(call, call.positions, "token", lambda: slope * call.signs[0] * call.operand)
    return call.fit(*(slope * sign if sign != 1 else slope for sign in call.signs[: len(call.operands)]))


@act_on_rows
def pass_mask_slope(call: AdditionCall, slope: Tensor) -> Shares:
    """A mask was added: it absorbs nothing."""
    return call.fit(slope)


def multiply_slope(slope: Tensor, x: Tensor) -> Tensor:
    """slope * x, and zero where the slope is zero, also where x is -inf."""
    return torch.where(slope == 0, 0, slope * x)


def favour_agreeing_products(call: LinearCall, slope: Tensor) -> Shares:
    r"""LRP-gamma: products that agree in sign with the output count $1 + \gamma$ times.

    $$ R_j = \sum_i \frac{c_{ij}}{\sum_k c_{ik}} R_i, \qquad c_{ij} = x_j w_{ji} + \gamma\,(x_j w_{ji})^{\pm} $$

    with + where the output is positive and - where it is negative; the bias is one more input. As in
    `share_positive_products`, $(xw)^\pm = (xw \pm |x||w|)/2$, so that two matrix products forward and two back are
    enough. The sum over k has the sign of the output, so that magnitudes are divided.
    """
    x, bias, gamma = call.operand, call.bias, call.parameters["gamma"]
    weight_size, sign, size = call.take_magnitude(), call.result.sign(), call.result.abs()
    bound = call.apply(x.abs(), weight_size)
    bound = bound if bias is None else bound.add_(bias.abs())
    whole = bound.mul_(gamma / 2).add_(size, alpha=1 + gamma / 2).add_(torch.finfo(size.dtype).tiny)
    s = size.div_(whole).mul_(slope)
    share = call.apply_transpose(s, call.weight).mul_(1 + gamma / 2)
    share.addcmul_(x.sign(), call.apply_transpose(s * sign, weight_size), value=gamma / 2)
    if bias is not None:
        call.absorb("biases", lambda: s * (bias * (1 + gamma / 2) + sign * bias.abs() * (gamma / 2)))
    return (share,)


# --- operations that are not linear ----------------------------------------------------------------------------------


def pass_secant(call: ActivationCall, slope: Tensor) -> Shares | None:
    """An activation is replaced by the line through zero and its value: f(x) = x * (f(x) / x), the bracket held
    constant. A logarithm, which is not 0 at 0, passes its gradient."""
    if call.is_logarithm:
        pass_tangent(call, slope)
        return None
    secant = call.recipe.stabiliser.divide(call.result, call.operand)  # f(x) is as small as x: nothing cancels
    share = undo_broadcast(slope * secant, call.operand)
    call.absorb("activation at zero", lambda: slope * call.result - share * call.operand)
    return call.fit(share)


def pass_tangent(call: ActivationCall, slope: Tensor) -> None:
    """The true gradient of an activation. f(x) - x f'(x) is absorbed."""

    def compute_curvature() -> Tensor:
        passed = sum(x * back for x, back in zip(call.operands, call.backpropagate(slope), strict=True))
        return slope * call.result - passed

    call.absorb("curvature of activations", compute_curvature)


def hold_norm_spread(call: NormCall, slope: Tensor) -> Shares | None:
    """The spread is held constant, so that the rest is linear; the bias absorbs its share."""
    if call.linearised is None:  # statistics of the training data, or only a division: linear as it is
        return None
    share = transpose_linear(call.linearised, call.operand, slope)
    call.absorb("biases", lambda: slope * call.result - share * call.operand)
    return (share,)


def hold_statistic(call: NormaliseCall, slope: Tensor) -> Shares | None:
    """Divided by a spread: the spread is held constant. Centred by a mean: the true gradient, as a mean is linear."""
    return None if call.linearised is None else call.fit(transpose_linear(call.linearised, call.operand, slope))


@act_on_rows
def expand_softmax(call: SoftmaxCall, slope: Tensor) -> Shares | None:
    r"""A softmax by its first-order expansion at x: $R_x = x \odot (R - y \sum R)$. The rest, a bias, is absorbed."""
    if not call.is_plain:
        return None
    share = call.result * (slope - (call.result * slope).sum(call.axis, keepdim=True))
    call.absorb("softmax", lambda: slope * call.result - multiply_slope(share, call.operand))
    return call.fit(share)


@act_on_rows
def hold_constant(call: OperationCall, slope: Tensor) -> Shares | None:
    """The result is held constant: nothing passes. The logarithm of a softmax is no weight: its true gradient does."""
    if isinstance(call, SoftmaxCall) and not call.is_plain:
        return None
    call.absorb(f"{call.operation} held constant", lambda: slope * call.result)
    return call.fit()


@act_on_rows
def halve_product(call: ProductCall, slope: Tensor) -> Shares:
    """A product of two: each factor gets half."""
    return tuple(back / len(call.operands) for back in call.backpropagate(slope))


@act_on_rows
def hold_gates(call: ProductCall, slope: Tensor) -> Shares:
    """Attention, or a gate, is held constant, and the other factor gets all; without a gate, each gets half."""
    if len(call.operands) == 1 or call.gate is None:
        return halve_product(call, slope)
    return tuple(None if i == call.gate.operand else back for i, back in enumerate(call.backpropagate(slope)))


@act_on_rows
def hold_attention(call: ProductCall, slope: Tensor) -> Shares:
    """Attention is held constant, and the values get all; any other product is halved."""
    is_attention = call.gate is not None and call.gate.is_attention
    return hold_gates(call, slope) if is_attention else halve_product(call, slope)


# --- positions -------------------------------------------------------------------------------------------------------


def share_rotation(call: ScaleCall, slope: Tensor) -> Shares | None:
    """Multiplied by a number per position (rotary embedding): the position absorbs half, as a factor of any product."""
    if call.positions is None:
        return None
    call.absorb("positions", lambda: slope * call.result / 2)
    record_placed(call, call.positions, "position", lambda: slope * call.result / 2)
    assert isinstance(call.factor, Tensor)
    call.switch.tables[call.step] = (call.place, call.factor)
    return call.fit(slope * call.factor / 2)


def record_placed(call: OperationCall, positions: Trace | None, what: str, relevance: Callable[[], Tensor]) -> None:
    """Record how much relevance belongs to each token ("token" or "position"), if this is tracked and known."""
    if call.switch.placed is not None and positions is not None:
        call.switch.placed[call.step, what] = sum_per_token(relevance(), positions)


def sum_per_token(relevance: Tensor, positions: Trace) -> Tensor:
    """Summed over all axes but examples and tokens: [batch token]."""
    batch, tokens = axis_of(positions.samples), axis_of(positions.tokens)
    assert tokens is not None
    summed = relevance.sum([axis for axis in range(relevance.dim()) if axis not in (batch, tokens)])
    if batch is None:
        return summed.unsqueeze(0)
    return summed if batch < tokens else summed.mT
