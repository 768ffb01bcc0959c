"""The autograd node that applies a rule: it passes the true gradient or relevance, as the switch says.

Every operation that depends on the explained input has a `RuleNode` behind it. Its forward returns the true result; its
backward passes what arrives to the true operation (`Switch.recipe` is None: the gradient) or lets the rule of the
recipe divide it among the operands. So one forward pass serves both. The node holds the switch in `ctx`, since CUDA
runs backward passes on threads of its own.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance.calls import OperationCall, Shares, backpropagate
from whyformer._engine.relevance.one_token import pass_by_token
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.relevance.rounding import RoundingError
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
