"""The rulebook: which rule an operation gets, and what the rule must know about it.

An operation is described to its rule as a `Call` with a kind: linear, pixels, product, add, bias, mask, scale,
normalise, select, join, pool, attention, norm, softmax, activation. What the recipe does with a kind is its business
(rules.py).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance.node import OperationCall
from whyformer._engine.relevance.rules import MASK_CEILING
from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.attention import read_fused_arguments
from whyformer._engine.tracing.follow import contract_label, follow_einsum, follow_product, get_root, is_straight
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import SampleGroups, Trace, trace_of
from whyformer.errors import UnknownOperation

Ruling = tuple[OperationCall, list[Tensor]]  # and the operands that share the relevance
NormFunction = Callable[[Tensor], Tensor]


class Rulebook:
    """Rulings for one operation at a place in the model."""

    def __init__(self, operation: Operation, result: Tensor, *, batch: int, step: int, place: str) -> None:
        self.operation, self.result = operation, result
        self.batch, self.step, self.place = batch, step, place

    def find_ruling(self) -> Ruling | None:
        """The call and its operands; None if there is no rule."""
        name = self.operation.name
        for names, rule in RULINGS:
            if name in names:
                return rule(self)
        return None

    def call(self, kind: str, **more: Any) -> OperationCall:
        return OperationCall(kind, self.step, self.operation.name, self.place, self.samples(), **more)

    def samples(self) -> SampleGroups | None:
        """Which example each entry of the result belongs to."""
        operation, shape = self.operation, self.result.shape
        label = trace_of(self.result).samples
        if label is None:
            label = provenance.pick_newest_trace([trace_of(t) for t in operation.given]).samples
            if operation.name == "linear":
                label = contract_label(label, -1)
            elif operation.name == "einsum":
                label = follow_einsum(operation.args).samples
            elif operation.name in operations.PRODUCTS:
                label = follow_product(operation, self.result).samples
        label = provenance.broadcast_label(label, shape)
        if label is None and self.batch == 1:
            label = torch.zeros((1,) * len(shape), dtype=torch.int32, device=self.result.device)
        return SampleGroups(label, self.batch) if label is not None else None

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
        query, key, value, mask, scale, is_grouped = read_fused_arguments(self.operation)
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

    def activation(self) -> Ruling | None:
        operation, x = self.operation, self.operation.given[0]
        run = lambda start: operation.map_arguments(lambda value: start if value is x else value).run()  # noqa: E731
        return (self.call("activation", run=run), [x]) if x.requires_grad else None

    def softmax(self) -> Ruling | None:
        x = self.operation.given[0]
        axis = self.operation.argument(1, "dim", "axis")
        facts = {"axis": -1 if axis is None else axis}
        return (self.call("softmax", facts=facts), [x]) if x.requires_grad else None

    def norm(self) -> Ruling | None:
        x = self.operation.given[0]
        return (self.call("norm", run=hold_spread(self.operation)), [x]) if x.requires_grad else None

    def product(self) -> Ruling:
        operation = self.operation
        if self.is_plain_linear():
            return self.call("linear", weight=operation.args[1].t()), operation.carrying
        is_plain = operation.name in ("matmul", "bmm") and len(operation.carrying) == 2
        run = torch.matmul if is_plain else as_function(operation)
        return self.call("product", run=run, facts=find_gate(operation.carrying)), operation.carrying

    def is_plain_linear(self) -> bool:
        """x @ W with a constant matrix W."""
        operation = self.operation
        if operation.name not in ("matmul", "mm") or len(operation.carrying) != 1:
            return False
        return operation.carrying[0] is operation.args[0] and operation.args[1].dim() == 2

    def addition(self) -> Ruling | None:
        operation, carrying = self.operation, self.operation.carrying
        if len(carrying) == 1:
            return self.constant_addition(carrying[0])
        first, second = carrying
        if trace_of(second).is_statistic:
            return self.call("normalise", facts={"adds": True}), [first, second]
        if get_root(first) is get_root(second) and first.shape == second.shape:
            return self.primitive_activation(first, second)
        signs = self.signs()
        if first is not operation.argument(0, "input"):
            signs = signs[::-1]
        return self.call("add", facts={"own_sign": signs[0], "sign": signs[1]}), [first, second]

    def primitive_activation(self, first: Tensor, second: Tensor) -> Ruling:
        """A step of an activation that is written out: two functions of one tensor, put together entry by entry. The
        operand that is the root itself, or a multiple of it, comes first and gets the relevance."""
        run = as_function(self.operation)
        if is_straight(second) and not is_straight(first):
            return self.call("activation", run=lambda a, b: run(b, a)), [second, first]
        return self.call("activation", run=run), [first, second]

    def signs(self) -> tuple[float, float]:
        """The factors of the two addends: -1 where one is subtracted, or `alpha`."""
        alpha = self.operation.kwargs.get("alpha", 1)
        if self.operation.name == "rsub":
            return -alpha, 1
        return (1, -alpha) if "sub" in self.operation.name else (1, alpha)

    def constant_addition(self, x: Tensor) -> Ruling:
        given = self.operation.argument(0, "input"), self.operation.argument(1, "other")
        place = next(i for i, a in enumerate(given) if a is not x)
        constant, signs = given[place], self.signs()
        facts: dict[str, Any] = {"constant": constant, "own_sign": signs[1 - place]}
        if isinstance(constant, Tensor) or signs[place] != 1:
            facts["constant"] = (constant.detach() if isinstance(constant, Tensor) else constant) * signs[place]
        if is_mask(constant):
            return self.call("mask", facts=facts | {"constant_is": "mask"}), [x]
        if is_per_channel(constant, self.result):
            return self.call("bias", facts=facts | {"constant_is": "biases"}), [x]
        facts["constant_is"] = "positions and other constants"
        is_sequence = self.result.dim() == 3  # a bias on attention scores has more axes, and belongs to pairs of tokens
        return self.call("add", facts=facts | (self.places(constant) if is_sequence else {})), [x]

    def places(self, constant: Any) -> dict[str, Any]:
        """Where the tokens of the result are, if the constant has a vector of its own for each."""
        trace = trace_of(self.result)
        tokens = provenance.broadcast_label(trace.tokens, self.result.shape)
        axis = provenance.axis_of(tokens)
        if not isinstance(constant, Tensor) or axis is None or axis == self.result.dim() - 1 or constant.size(-1) == 1:
            return {}
        behind = self.result.dim() - axis
        if constant.dim() < behind or constant.size(-behind) == 1 or is_binary(constant):
            return {}
        return {"places": Trace(samples=provenance.broadcast_label(trace.samples, self.result.shape), tokens=tokens)}

    def multiplication(self) -> Ruling:
        operation, carrying = self.operation, self.operation.carrying
        divides = operation.name in operations.DIVISIONS
        if len(carrying) == 1:
            return self.scaling(carrying[0], divides)
        first, second = carrying
        for kept, other in ((first, second), (second, first)):
            if trace_of(other).is_statistic and not (divides and other is first):
                return self.normalised(kept, other)
        if get_root(first) is get_root(second) and first.shape == second.shape:
            return self.primitive_activation(first, second)
        if divides:
            return self.normalised(first, second)
        return self.call("product", run=as_function(operation), facts=find_gate(carrying)), carrying

    def normalised(self, kept: Tensor, other: Tensor) -> Ruling:
        operation = self.operation
        run = lambda start: operation.map_arguments(lambda value: start if value is kept else value).run()  # noqa: E731
        return self.call("normalise", run=run), [kept, other]

    def scaling(self, x: Tensor, divides: bool) -> Ruling:
        first = self.operation.argument(0, "input")
        factor = next(a for a in (first, self.operation.argument(1, "other", default=-1.0)) if a is not x)
        if divides and (first is not x or self.operation.name.startswith("r")):
            return self.call("activation", run=as_function(self.operation)), [x]  # a number divided by x
        facts = {"factor": 1.0 if divides else factor}
        return self.call("scale", facts=facts if divides else facts | self.places(factor)), [x]

    def selection(self) -> Ruling:
        index = self.operation.args[1]
        return self.call("select", run=lambda x: x[index]), self.operation.carrying[:1]

    def concatenation(self) -> Ruling:
        parts, axis = self.operation.concatenation_arguments()
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


RULINGS: tuple[tuple[frozenset[str], Callable[[Rulebook], Ruling | None]], ...] = (
    (frozenset(("linear",)), Rulebook.linear),
    (operations.CONVOLUTIONS, Rulebook.convolution),
    (frozenset((operations.FUSED_ATTENTION,)), Rulebook.fused_attention),
    (operations.ACTIVATIONS, Rulebook.activation),
    (operations.SOFTMAXES, Rulebook.softmax),
    (operations.NORMS, Rulebook.norm),
    (operations.PRODUCTS, Rulebook.product),
    (operations.ADDITIONS, Rulebook.addition),
    (operations.MULTIPLICATIONS, Rulebook.multiplication),
    (frozenset(("getitem",)), Rulebook.selection),
    (operations.CONCATENATIONS, Rulebook.concatenation),
    (operations.POOLS | operations.STATISTICS | operations.RESIZES, Rulebook.reduction),
)


def needs_no_rule(operation: Operation) -> bool:
    """The gradient of a view is what a rule would do. Picking one entry counts as an operation: the released code
    divides there."""
    plain = operations.VIEWS | operations.IDENTITIES | operations.EXTREMA | operations.HARMLESS
    return operation.name in plain and not (operation.name == "getitem" and picks_one(operation.args[1]))


def picks_one(index: Any) -> bool:
    """x[:, 0] and the like, which take one entry of an axis."""
    return isinstance(index, int) or (isinstance(index, tuple) and any(isinstance(i, int) for i in index))


def as_function(operation: Operation) -> Callable[..., Tensor]:
    """The operation as a function of its carrying operands, in order."""

    def run(*operands: Tensor) -> Tensor:
        fresh = iter(operands)
        return operation.map_arguments(
            lambda value: next(fresh) if isinstance(value, Tensor) and value.requires_grad else value
        ).run()

    return run


def hold_spread(operation: Operation) -> NormFunction | None:
    """A norm as a linear function of its first argument, its spread a constant; None if it is linear as it is."""
    given, x = operation.argument, operation.given[0].detach()
    if operation.name == "layer_norm":
        axes = tuple(range(-len(given(1, "normalized_shape")), 0))
        spread = (x.var(axes, unbiased=False, keepdim=True) + given(4, "eps", default=1e-5)).sqrt()
        weight = given(2, "weight")
        return lambda start: apply_weight((start - start.mean(axes, keepdim=True)) / spread, weight)
    if operation.name == "rms_norm":
        axes = tuple(range(-len(given(1, "normalized_shape")), 0))
        eps = given(3, "eps")
        spread = (x.square().mean(axes, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps)).sqrt()
        return lambda start: apply_weight(start / spread, given(2, "weight"))
    if operation.name == "normalize":
        size = x.norm(given(1, "p", default=2.0), given(2, "dim", default=1), keepdim=True)
        return lambda start: start / size.clamp_min(given(3, "eps", default=1e-12))
    if operation.name == "group_norm":
        groups = given(1, "num_groups")
        return lambda start: apply_weight(
            normalise_by_group(start, x, groups, given(4, "eps", default=1e-5)), given(2, "weight"), 1
        )
    if operation.name == "instance_norm" and given(5, "use_input_stats", default=True):
        return lambda start: apply_weight(
            normalise_by_group(start, x, x.size(1), given(7, "eps", default=1e-5)), given(3, "weight"), 1
        )
    return None


def normalise_by_group(start: Tensor, x: Tensor, groups: int, eps: float) -> Tensor:
    """Each group of channels of `start` centred, and divided by the spread that x has there."""
    own, held = (t.reshape(x.size(0), groups, -1) for t in (start, x))
    spread = (held.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    return ((own - own.mean(-1, keepdim=True)) / spread).reshape(x.shape)


def apply_weight(x: Tensor, weight: Tensor | None, axis: int | None = None) -> Tensor:
    if weight is None:
        return x
    return x * (weight if axis is None else weight.view(-1, *(1,) * (x.dim() - 1 - axis)))


def find_gate(factors: list[Tensor]) -> dict[str, Any]:
    """Which of two factors is a gate: attention over what the other holds, or an activation beside what is none."""
    if len(factors) != 2:
        return {}
    for kind, is_gate in (
        ("attention", lambda t: trace_of(t).is_attention),
        ("activation", lambda t: not is_straight(t)),
    ):
        found = [place for place, factor in enumerate(factors) if is_gate(factor)]
        if len(found) == 1:
            return {"gate": found[0], "gate_is": kind}
    return {}


def is_binary(constant: Tensor) -> bool:
    """Ones and zeros: it says which entries count, not where they are."""
    return bool(((constant == 0) | (constant == 1)).all())


def is_mask(constant: Any) -> bool:
    """Zero where it lets pass, very low where it does not."""
    return isinstance(constant, Tensor) and bool(((constant == 0) | (constant <= MASK_CEILING)).all())


def is_per_channel(constant: Any, result: Tensor) -> bool:
    """A number, or one number per channel: a bias."""
    if not isinstance(constant, Tensor):
        return True
    return constant.numel() == 1 or (constant.numel() == result.size(-1) and constant.size(-1) == result.size(-1))
