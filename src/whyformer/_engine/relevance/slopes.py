r"""Rules that send slopes back: a gradient in which a few operations are held, halved or made straight.

Relevance is $R = x \odot s$. Where an operation is linear, the true gradient of it is the proportional rule:
with $y = xW + b$ and $s_x = s_y W^\top$,

    $R_j = \sum_i \frac{x_j w_{ji}}{y_i} R_i = x_j \sum_i w_{ji}\,s_i$

and nothing was divided. Only what is not linear needs a rule:

    activation  $y = f(x)$          the secant: $s_x = s_y\,f(x) / x$, so that $R_x = R_y$
    norm        $y = (x - m)/\sigma$    $\sigma$ is held constant, the mean is not
    product     $y = a b$           each factor gets half; or one factor is held and the other gets all
    softmax     its gradient        $R_x = x \odot (R - \mathrm{softmax}(x) \sum R)$ (what is missing is in the books)

A rule that returns None lets the true gradient pass. Biases, constants and the rest of a softmax take what is due to
them, and the books say so.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.relevance.node import OperationCall, Shares, Switch, absorb_relevance, stabiliser_of
from whyformer._engine.tracing.provenance import Trace, axis_of


def undo_broadcast(share: Tensor, operand: Tensor) -> Tensor:
    """Undo broadcasting."""
    return share.sum_to_size(operand.shape) if share.shape != operand.shape else share


def apply_transpose(function: Callable[[Tensor], Tensor], x: Tensor, s: Tensor) -> Tensor:
    """f^T s for a linear f."""
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        (back,) = torch.autograd.grad(function(start), start, s)
    return back


def make_linear_maps(call: OperationCall, x: Tensor) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """(x, W) -> xW without bias, and (s, W) -> sW^T, for whatever linear operation this was."""
    if call.run is None:
        return F.linear, torch.matmul
    run = call.run
    return run, lambda s, weight: apply_transpose(lambda start: run(start, weight), x, s)


# --- what is linear --------------------------------------------------------------------------------------------------


def pass_gradient(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """A linear operation: the gradient. What is due to its bias is absorbed."""
    constant = call.bias if call.bias is not None else call.facts.get("constant")
    if constant is not None:
        absorb_relevance(switch, call, call.facts.get("constant_is", "biases"), lambda: slope * constant)
    return None


def pass_joined_slope(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """A concatenation: each part gets its own; what is due to constant parts (a class token) is absorbed."""
    absorb_relevance(switch, call, "class token and other constants", lambda: pick_constant_parts(call, slope * result))
    return None


def pick_constant_parts(call: OperationCall, whole: Tensor) -> Tensor:
    """What belongs to the parts of a concatenation that do not carry, zero elsewhere."""
    parts = whole.split(call.facts["sizes"], call.facts["axis"])
    kept = [torch.zeros_like(p) if ours else p for p, ours in zip(parts, call.facts["carrying"], strict=True)]
    return torch.cat(kept, call.facts["axis"])


def pass_addition_slope(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """u + v: the slope of the sum is that of both. A constant (a position, an attention bias) absorbs its share."""
    signs = call.facts.get("own_sign", 1), call.facts.get("sign", 1)
    if len(operands) == 1:
        constant = call.facts["constant"]
        absorb_relevance(switch, call, call.facts["constant_is"], lambda: _multiply_slope(slope, constant))
        record_placed(switch, call, "position", lambda: _multiply_slope(slope, constant))
        record_placed(switch, call, "token", lambda: slope * signs[0] * operands[0])
    shares = (undo_broadcast(slope * sign if sign != 1 else slope, x) for sign, x in zip(signs, operands, strict=False))
    return tuple(shares)


def pass_mask_slope(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """A mask was added: it takes nothing."""
    return (undo_broadcast(slope, operands[0]),)


def _multiply_slope(slope: Tensor, constant: Tensor) -> Tensor:
    """slope * constant, where nothing comes back through a mask of -inf."""
    return torch.where(slope == 0, 0, slope * constant)


def favour_agreeing_products(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""LRP-gamma: products that agree in sign with the output count $1 + \gamma$ times.

    $$ R_j = \sum_i \frac{c_{ij}}{\sum_k c_{ik}} R_i, \qquad c_{ij} = x_j w_{ji} + \gamma\,(x_j w_{ji})^{\pm} $$

    with + where the output is positive and - where it is negative; the bias is one more input. As in
    `positive_products`, $(xw)^\pm = (xw \pm |x||w|)/2$, so that two products forward and two back are enough.
    """
    (x,) = operands
    assert switch.recipe is not None and call.weight is not None
    gamma = switch.recipe.parameters["gamma"]
    forward, back = make_linear_maps(call, x)
    size, sign = switch.magnitude(call.weight), result.sign()
    bound = forward(x.abs(), size)
    if call.bias is not None:
        bound = bound + call.bias.abs()
    whole = result * (1 + gamma / 2) + sign * bound * (gamma / 2)
    s = slope * result / whole.masked_fill(whole == 0, 1)
    share = back(s, call.weight).mul_(1 + gamma / 2).addcmul_(x.sign(), back(s * sign, size), value=gamma / 2)
    if call.bias is not None:
        bias = call.bias
        absorb_relevance(switch, call, "biases", lambda: s * (bias * (1 + gamma / 2) + sign * bias.abs() * (gamma / 2)))
    return (share,)


# --- what is not -----------------------------------------------------------------------------------------------------


def pass_secant(call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """An activation is the straight line through zero and its value: f(x) = x * (f(x) / x), the bracket held."""
    x = operands[0]
    share = undo_broadcast(slope * stabiliser_of(switch).divide(result, x), x)
    absorb_relevance(switch, call, "activation at zero", lambda: slope * result - share * x)
    return share, *(None for _ in operands[1:])


def pass_tangent(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """The true gradient of an activation. f(x) - x f'(x) goes to nobody."""
    if switch.absorbed is not None:
        gone = sum(x * back for x, back in zip(operands, compute_partials(call, slope, operands), strict=True))
        absorb_relevance(switch, call, "curvature of activations", lambda: slope * result - gone)
    return None


def hold_norm_spread(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """The spread is held, so that what is left is linear; what is due to the bias is absorbed."""
    (x,) = operands
    if call.run is None:  # statistics of the training, or nothing but a division: linear as it is
        return pass_gradient(call, slope, result, operands, switch)
    share = apply_transpose(call.run, x, slope)
    absorb_relevance(switch, call, "biases", lambda: slope * result - share * x)
    return (share,)


def hold_statistic(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """Divided by a spread: it is held. Centred by a mean: the gradient, since a mean is linear."""
    if call.facts.get("adds"):
        return None
    assert call.run is not None
    return apply_transpose(call.run, operands[0], slope), *(None for _ in operands[1:])


def expand_softmax(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    r"""A softmax by its first-order expansion at x: $R_x = x \odot (R - y \sum R)$. The rest, a bias, is absorbed."""
    if call.operation not in ("softmax", "_softmax", "scaled_dot_product_attention"):
        return None
    share = result * (slope - (result * slope).sum(call.facts.get("axis", -1), keepdim=True))
    absorb_relevance(switch, call, "softmax", lambda: slope * result - _multiply_slope(share, operands[0]))
    return (undo_broadcast(share, operands[0]),)


def hold_constant(call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """Held constant: nothing passes."""
    absorb_relevance(switch, call, f"{call.operation} held constant", lambda: slope * result)
    return tuple(None for _ in operands)


def halve_product(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """A product of two: each factor gets half."""
    return tuple(share / len(operands) for share in compute_partials(call, slope, operands))


def hold_gates(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """Attention, or a gate, is held, and what it multiplies gets all; without a gate, halves."""
    return _hold_gate(call, slope, result, operands, switch, ("attention", "activation"))


def hold_attention(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """Attention is held, and the values get all; any other product is halved."""
    return _hold_gate(call, slope, result, operands, switch, ("attention",))


def _hold_gate(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch, gates: tuple[str, ...]
) -> Shares | None:
    if len(operands) == 1 or call.facts.get("gate_is") not in gates:
        return halve_product(call, slope, result, operands, switch)
    gate = call.facts["gate"]
    return tuple(None if i == gate else share for i, share in enumerate(compute_partials(call, slope, operands)))


def compute_partials(call: OperationCall, slope: Tensor, operands: list[Tensor]) -> tuple[Tensor, ...]:
    """The true gradient of an operation."""
    assert call.run is not None
    if call.run is torch.matmul and operands[0].shape[:-2] == operands[-1].shape[:-2]:
        a, b = operands
        return slope @ b.mT, a.mT @ slope
    with torch.enable_grad():
        starts = [operand.detach().requires_grad_() for operand in operands]
        return torch.autograd.grad(call.run(*starts), starts, slope)


# --- positions -------------------------------------------------------------------------------------------------------


def share_rotation(
    call: OperationCall, slope: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """Multiplied by a number per position (rotary embedding): half is due to the position, as in any product."""
    if "places" not in call.facts:
        return None
    absorb_relevance(switch, call, "positions", lambda: slope * result / 2)
    record_placed(switch, call, "position", lambda: slope * result / 2)
    return (undo_broadcast(slope * call.facts["factor"] / 2, operands[0]),)


def record_placed(switch: Switch, call: OperationCall, what: str, relevance: Callable[[], Tensor]) -> None:
    """Note how much of it belongs to each token, if somebody asks and it is known."""
    if switch.placed is not None and "places" in call.facts:
        switch.placed[call.step, what] = sum_per_token(relevance(), call.facts["places"])


def sum_per_token(relevance: Tensor, places: Trace) -> Tensor:
    """Summed over all but examples and tokens: [batch token]."""
    batch, tokens = axis_of(places.samples), axis_of(places.tokens)
    assert tokens is not None
    summed = relevance.sum([axis for axis in range(relevance.dim()) if axis not in (batch, tokens)])
    if batch is None:
        return summed.unsqueeze(0)
    return summed if batch < tokens else summed.mT
