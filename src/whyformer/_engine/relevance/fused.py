r"""Relevance through fused attention by the kernel's own backward pass, in recipes that send slopes.

$$ O = \mathrm{softmax}(QK^\top / \sqrt d)\,V: \qquad
   s_Q = \tfrac14 \frac{\partial O}{\partial Q}^\top s_O, \quad s_K = \tfrac14 \frac{\partial O}{\partial K}^\top s_O,
   \quad s_V = \tfrac12 \frac{\partial O}{\partial V}^\top s_O $$

with $s = R / x$ the slope. AttnLRP halves at each of the two products and takes the softmax by its derivative, so that
what it sends is the true gradient times a constant; CP-LRP and LibraGrad hold attention constant: nothing for queries
and keys, the true gradient for values. The kernel computes this gradient in memory linear in the number of tokens.

So queries, keys and values pass a node on their way into the kernel that multiplies what comes back by the factor of
the recipe, and the rule for attention lets the true gradient pass. Which recipes allow this is read from their rules.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance import rules, slopes
from whyformer._engine.relevance.calls import Rule
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.tracing.fused_attention import NAMES, replace_arguments
from whyformer._engine.tracing.operations import Operation

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
