"""The rulebook: which rule an operation gets, and what the rule must know about it.

An operation is described to its rule as a `Call` with a kind: linear, pixels, product, add, bias, mask, scale,
normalise, select, join, pool, attention, norm, softmax, activation. What the recipe does with a kind is its business
(rules.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer import labels, operations
from whyformer.attention import fused_arguments
from whyformer.errors import UnknownOperation
from whyformer.follow import cut, follow_einsum, follow_product, is_straight, root
from whyformer.labels import Samples, trace_of
from whyformer.node import Call
from whyformer.operations import Operation
from whyformer.rules import MASKED

Ruling = tuple[Call, list[Tensor]]  # and the operands that share the relevance
KINDS = {"activation": operations.ACTIVATIONS, "softmax": operations.SOFTMAXES, "norm": operations.NORMS}


class Rulebook:
    """Rulings for one operation at a place in the model."""

    def __init__(self, operation: Operation, result: Tensor, *, batch: int, step: int, place: str) -> None:
        self.operation, self.result = operation, result
        self.batch, self.step, self.place = batch, step, place

    def ruling(self) -> Ruling | None:
        """The call and its operands; None if there is no rule."""
        name = self.operation.name
        for names, rule in TABLE:
            if name in names:
                return rule(self)
        for kind, names in KINDS.items():
            if name in names and self.operation.given[0].requires_grad:
                return self.call(kind), self.operation.carrying[:1]
        return None

    def call(self, kind: str, **more: Any) -> Call:
        return Call(kind, self.step, self.operation.name, self.place, self.samples(), **more)

    def samples(self) -> Samples | None:
        """Which example each entry of the result belongs to."""
        operation, shape = self.operation, self.result.shape
        label = trace_of(self.result).samples
        if label is None:
            label = labels.newest([trace_of(t) for t in operation.given]).samples
            if operation.name == "linear":
                label = cut(label, -1)
            elif operation.name == "einsum":
                label = follow_einsum(operation.args).samples
            elif operation.name in operations.PRODUCTS:
                label = follow_product(operation, self.result).samples
        label = labels.broadcast(label, shape)
        if label is None and self.batch == 1:
            label = torch.zeros((1,) * len(shape), dtype=torch.int32, device=self.result.device)
        return Samples(label, self.batch) if label is not None else None

    # --- one of a kind -----------------------------------------------------------------------------------------------

    def linear(self) -> Ruling | None:
        x, weight, bias = self.operation.linear_arguments()
        is_constant = not weight.requires_grad and (bias is None or not bias.requires_grad)
        return (self.call("linear", weight=weight, bias=bias), [x]) if is_constant else None

    def convolution(self) -> Ruling | None:
        x, weight, bias = self.operation.linear_arguments()
        if weight.requires_grad:
            return None
        rest = {k: v for k, v in self.operation.kwargs.items() if k not in ("input", "weight", "bias")}
        run = lambda start, w: self.operation.function(start, w, None, *self.operation.args[3:], **rest)  # noqa: E731
        kind = "pixels" if trace_of(x).is_pixels else "linear"
        spread = bias.view(-1, *(1,) * (self.result.dim() - 2)) if bias is not None else None
        return self.call(kind, weight=weight, bias=spread, run=run), [x]

    def fused_attention(self) -> Ruling:
        query, key, value, mask, scale, is_grouped = fused_arguments(self.operation)
        if mask is not None and mask.requires_grad:
            raise UnknownOperation(
                f"{self.place} adds an attention bias that depends on the input, which has no relevance rule yet. "
                "Use a method without relevance."
            )
        is_per_key = mask is not None and mask.numel() <= key.size(-2)  # a bias of the last axis, as if written out
        has_bias = mask is not None and not is_mask(mask) and not is_per_key
        facts: dict[str, Any] = {"mask": mask, "scale": scale, "is_grouped": is_grouped, "has_bias": has_bias}
        facts["carrying"] = [t.requires_grad for t in (query, key, value)]
        return self.call("attention", facts=facts), [query, key, value]

    def product(self) -> Ruling:
        operation = self.operation
        if self.is_plain_linear():
            return self.call("linear", weight=operation.args[1].t()), operation.carrying
        if operation.name in ("matmul", "bmm") and len(operation.carrying) == 2:
            return self.call("product", run=torch.matmul), operation.carrying
        return self.call("product", run=as_function(operation)), operation.carrying

    def is_plain_linear(self) -> bool:
        """x @ W with a constant matrix W."""
        operation = self.operation
        if operation.name not in ("matmul", "mm") or len(operation.carrying) != 1:
            return False
        return operation.carrying[0] is operation.args[0] and operation.args[1].dim() == 2

    def addition(self) -> Ruling | None:
        operation, carrying = self.operation, self.operation.carrying
        if operation.kwargs.get("alpha", 1) != 1:
            return None
        if len(carrying) == 1:
            return self.added_constant(carrying[0])
        first, second = carrying
        if trace_of(second).is_statistic:
            return self.call("normalise"), [first, second]
        if root(first) is root(second) and first.shape == second.shape:
            return self.call("activation"), straight_first(first, second)
        if operation.name == "rsub":
            first, second = second, first
        return self.call("add", facts={"sign": -1 if "sub" in operation.name else 1}), [first, second]

    def added_constant(self, x: Tensor) -> Ruling:
        operation = self.operation
        given = operation.argument(0, "input"), operation.argument(1, "other")
        constant = next(a for a in given if a is not x)
        if is_mask(constant):
            return self.call("mask", facts={"constant": constant.detach(), "constant_is": "mask"}), [x]
        if is_per_channel(constant, self.result):
            return self.call("bias"), [x]
        is_minuend = (given[0] is x) != (operation.name == "rsub")
        signs = (1, 1) if "sub" not in operation.name else (1, -1) if is_minuend else (-1, 1)
        facts = {"constant": constant.detach() * signs[1], "own_sign": signs[0]}
        return self.call("add", facts=facts | {"constant_is": "positions and other constants"}), [x]

    def multiplication(self) -> Ruling:
        operation, carrying = self.operation, self.operation.carrying
        divides = operation.name in operations.DIVISIONS
        if len(carrying) == 1:
            return self.scaling(carrying[0], divides)
        first, second = carrying
        for kept, other in ((first, second), (second, first)):
            if trace_of(other).is_statistic and not (divides and other is first):
                return self.call("normalise"), [kept, other]
        if root(first) is root(second) and first.shape == second.shape:
            return self.call("activation"), straight_first(first, second)
        if divides:
            return self.call("normalise"), [first, second]
        return self.call("product", run=as_function(operation)), carrying

    def scaling(self, x: Tensor, divides: bool) -> Ruling:
        first = self.operation.argument(0, "input")
        factor = next(a for a in (first, self.operation.argument(1, "other", default=-1.0)) if a is not x)
        if divides and (first is not x or self.operation.name.startswith("r")):
            return self.call("activation"), [x]  # a number divided by x
        return self.call("scale", facts={"factor": 1.0 if divides else factor}), [x]

    def selection(self) -> Ruling:
        index = self.operation.args[1]
        return self.call("select", run=lambda x: x[index]), self.operation.carrying[:1]

    def concatenation(self) -> Ruling:
        parts, axis = self.operation.joined()
        is_stack = self.operation.name == "stack"
        facts = {
            "axis": axis,
            "sizes": [1 if is_stack else part.size(axis) for part in parts],
            "carrying": [part.requires_grad for part in parts],
            "is_stack": is_stack,
        }
        return self.call("join", facts=facts), [part for part in parts if part.requires_grad]

    def reduction(self) -> Ruling | None:
        return (
            (self.call("pool", run=as_function(self.operation)), self.operation.carrying)
            if len(self.operation.carrying) == 1
            else None
        )


TABLE: tuple[tuple[frozenset[str], Callable[[Rulebook], Ruling | None]], ...] = (
    (frozenset(("linear",)), Rulebook.linear),
    (operations.CONVOLUTIONS, Rulebook.convolution),
    (frozenset((operations.FUSED,)), Rulebook.fused_attention),
    (operations.PRODUCTS, Rulebook.product),
    (operations.ADDITIONS, Rulebook.addition),
    (operations.MULTIPLICATIONS, Rulebook.multiplication),
    (frozenset(("getitem",)), Rulebook.selection),
    (operations.JOINS, Rulebook.concatenation),
    (operations.POOLS | operations.STATISTICS, Rulebook.reduction),
)


def needs_no_rule(operation: Operation) -> bool:
    """The gradient of a view is what a rule would do. Picking one entry counts as an operation: the released code
    divides there."""
    plain = operations.VIEWS | operations.SAME | operations.WINNERS | operations.HARMLESS
    return operation.name in plain and not (operation.name == "getitem" and picks_one(operation.args[1]))


def picks_one(index: Any) -> bool:
    """x[:, 0] and the like, which take one entry of an axis."""
    return isinstance(index, int) or (isinstance(index, tuple) and any(isinstance(i, int) for i in index))


def as_function(operation: Operation) -> Callable[..., Tensor]:
    """The operation as a function of its carrying operands, in order."""

    def run(*operands: Tensor) -> Tensor:
        fresh = iter(operands)
        return operation.changed(
            lambda value: next(fresh) if isinstance(value, Tensor) and value.requires_grad else value
        ).run()

    return run


def is_mask(constant: Any) -> bool:
    """Zero where it lets pass, very low where it does not."""
    return isinstance(constant, Tensor) and bool(((constant == 0) | (constant <= MASKED)).all())


def is_per_channel(constant: Any, result: Tensor) -> bool:
    """A number, or one number per channel: a bias."""
    if not isinstance(constant, Tensor):
        return True
    return constant.numel() == 1 or (constant.numel() == result.size(-1) and constant.size(-1) == result.size(-1))


def straight_first(first: Tensor, second: Tensor) -> list[Tensor]:
    """The operand that is the root itself, or a multiple of it, gets the relevance."""
    return [second, first] if is_straight(second) and not is_straight(first) else [first, second]
