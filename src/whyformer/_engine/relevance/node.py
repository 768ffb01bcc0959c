r"""The autograd node that applies a rule: it passes the true gradient or relevance, as the switch says.

Every operation that depends on the explained input has a `RuleNode` behind it. Its forward returns the true result; its
backward passes what arrives to the true operation (`Switch.recipe` is None: the gradient) or lets the rule of the
recipe divide it among the operands. So one forward pass serves both. The node holds the switch in `ctx`, since CUDA
runs backward passes on threads of its own.

Relevance through fused attention by the kernel's own backward pass, in recipes that send slopes.

$$ O = \mathrm{softmax}(QK^\top / \sqrt d)\,V: \qquad
   s_Q = \tfrac14 \frac{\partial O}{\partial Q}^\top s_O, \quad s_K = \tfrac14 \frac{\partial O}{\partial K}^\top s_O,
   \quad s_V = \tfrac12 \frac{\partial O}{\partial V}^\top s_O $$

with $s = R / x$ the slope. AttnLRP halves at each of the two products and takes the softmax by its derivative, so that
what it sends is the true gradient times a constant; CP-LRP and LibraGrad hold attention constant: nothing for queries
and keys, the true gradient for values. The kernel computes this gradient in memory linear in the number of tokens.

So queries, keys and values pass a node on their way into the kernel that multiplies what comes back by the factor of
the recipe, and the rule for attention lets the true gradient pass. Which recipes allow this is read from their rules.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance import rules, slopes
from whyformer._engine.relevance.calls import OperationCall, Rule, Shares, backpropagate
from whyformer._engine.relevance.one_token import pass_by_token
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.relevance.rounding import RoundingError
from whyformer._engine.tracing.fused_attention import NAMES, replace_arguments
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.tiles import TileSetting, current_setting
from whyformer.errors import NonFinite


@dataclass
class Switch:
    """What the backward passes of one run share with their nodes. Holds no tensor of the graph."""

    recipe: Recipe | None = None
    is_strict: bool = False  # look for the first operation that makes a non-finite value
    absorbed: dict[tuple[int, str], Tensor] | None = None  # (step, what took it) -> relevance per example
    placed: dict[tuple[int, str], Tensor] | None = None  # (step, "token" or "position") -> relevance [batch token]
    # step of a rotation -> module, cosines or sines
    tables: dict[int, tuple[str, Tensor]] = field(default_factory=dict)
    rounding: RoundingError | None = None  # how much rounding has moved the relevance so far
    scratch: dict[Hashable, Tensor] = field(default_factory=dict)  # memory for what one rule needs while it works
    tiles: TileSetting = field(default_factory=current_setting.get)  # of the thread that runs the forward

    def take_magnitude(self, weight: Tensor) -> Tensor:
        """|W|, in memory that the next weight of this shape overwrites."""
        key = (weight.shape, weight.dtype, weight.device)
        if key not in self.scratch:
            self.scratch[key] = torch.empty_like(weight, memory_format=torch.contiguous_format)
        return torch.abs(weight, out=self.scratch[key])


class RuleNode(torch.autograd.Function):
    """Passes the true gradient to the true result, or relevance to the operands."""

    @staticmethod
    def forward(ctx: Any, switch: Switch, call: OperationCall, result: Tensor, *operands: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.switch, (ctx.call, weight) = switch, call.split_off_weight()
        ctx.save_for_backward(result, weight, *operands)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, ...]:
        result, weight, *operands = ctx.saved_tensors
        if arriving is None or ctx.switch.recipe is None:
            return None, None, arriving, *(None for _ in operands)
        call = ctx.call.attach(ctx.switch, result, operands, weight)
        if len(call.consumers) > 1 and "add" in call.consumers:
            arriving = call.stabilise_copy(arriving)
        shares = pass_by_token(call, arriving)
        if shares is None and call.beside_constants is not None:
            shares = backpropagate(call.beside_constants, call.operands, arriving)  # not what is constant
        if shares is None:
            return None, None, arriving, *(None for _ in operands)
        if ctx.switch.is_strict:
            refuse_non_finite_shares(shares, call)
        return None, None, None, *shares


def refuse_non_finite_shares(shares: Shares, call: OperationCall) -> None:
    if any(share is not None and not bool(share.isfinite().all()) for share in shares):
        raise NonFinite(
            f"The relevance of {call.operation} in {call.place or 'the model'} is not finite. "
            "Try dtype=torch.float64, or check the inputs for extreme values."
        )


# --- fused attention --------------------------------------------------------------------------------------------------


Factors = tuple[float, float, float]  # of the gradients by query, key and value
HOLDING_RULES = (slopes.hold_gates, slopes.hold_attention)
PASSING_RULES: dict[str, Rule] = {
    "attention": rules.share_attention,
    "mask": slopes.pass_mask_slope,
    "add": slopes.pass_addition_slope,
}


@dataclass(frozen=True)
class FusedFactors:
    """What the gradients of one fused call are multiplied by in a relevance pass."""

    switch: Switch
    carrying: tuple[bool, bool, bool]  # which of query, key and value depend on the input

    def read(self) -> Factors | None:
        """The factors under the recipe of the present pass; None if it has none, or goes step by step."""
        switch = self.switch
        if switch.recipe is None or switch.absorbed is not None or not switch.tiles.is_on:
            return None  # what the softmax absorbs is known only step by step
        return find_factors(switch.recipe, self.carrying)


def find_factors(recipe: Recipe, carrying: tuple[bool, bool, bool]) -> Factors | None:
    """The constants that the recipe multiplies the gradients by; None if its rules are no such constants."""
    query, key, value = carrying
    if any(recipe.rules[kind] is not rule for kind, rule in PASSING_RULES.items()):
        return None
    softmax, product = recipe.rules["softmax"], recipe.rules["product"]
    if softmax is slopes.hold_constant and product in HOLDING_RULES:
        return 0.0, 0.0, 1.0
    if softmax is not slopes.expand_softmax or product is not slopes.halve_product:
        return None
    weights = 0.5 if value else 1.0
    scores = weights * (0.5 if query and key else 1.0)
    return scores, scores, 0.5 if query or key else 1.0


class FactorNode(torch.autograd.Function):
    """Passes a tensor on; in a relevance pass, multiplies what comes back by its factor."""

    @staticmethod
    def forward(ctx: Any, factors: FusedFactors, index: int, tensor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.factors, ctx.index = factors, index
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, None, Tensor | None]:
        factors = ctx.factors.read()
        if factors is None or gradient is None:
            return None, None, gradient
        factor = factors[ctx.index]
        return None, None, None if factor == 0 else gradient * factor if factor != 1 else gradient


def attach_factors(operation: Operation, switch: Switch) -> tuple[Operation, FusedFactors]:
    """The fused call with a node at each operand that depends on the input."""
    operands = [operation.argument(index, name) for index, name in enumerate(NAMES)]
    query, key, value = (operand.requires_grad for operand in operands)
    factors = FusedFactors(switch, (query, key, value))
    changes = {
        name: FactorNode.apply(factors, index, operand)
        for index, (name, operand) in enumerate(zip(NAMES, operands, strict=True))
        if operand.requires_grad
    }
    return replace_arguments(operation, changes), factors
