"""From an operation to its call: which kind of operation it is, and what its rule must know about it.

The classes of calls, one for each kind of operation, are in calls.py; the rule for each kind is the recipe's choice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance import calls
from whyformer._engine.tracing import (
    Operation,
    SampleGroups,
    Trace,
    contract_label,
    follow_einsum,
    follow_product,
    get_root,
    hold_constants,
    is_straight,
    operations,
    provenance,
    read_fused_arguments,
    step_of,
    trace_of,
)

NORMS_BY_SHAPE = {"layer_norm", "rms_norm"}
CallAndOperands = tuple[calls.OperationCall, list[Tensor]]  # the operands share the relevance
NormFunction = Callable[[Tensor], Tensor]


class CallBuilder:
    """Describes one operation, at a place in the model, as a call."""

    def __init__(self, operation: Operation, result: Tensor, *, batch: int, step: int, place: str) -> None:
        self.operation, self.result = hold_constants(operation), result
        self.holds_constants = self.operation is not operation
        self.batch, self.step, self.place = batch, step, place

    def build(self) -> CallAndOperands | None:
        """The call and its operands; None if there is no rule for such an operation."""
        name = self.operation.name
        step = step_of(self.result, "weights")
        if step is not None and step.scores.requires_grad:  # the end of a softmax that the model writes out
            return self.make(calls.SoftmaxCall, axis=step.axis), [step.scores]
        for names, describe in DESCRIPTIONS:
            if name in names:
                described = describe(self)
                return described if described is None or not self.holds_constants else self.leave_out_held(*described)
        return None

    def leave_out_held(self, call: calls.OperationCall, operands: list[Tensor]) -> CallAndOperands:
        """The call with the operation as a function of these operands alone."""
        operation = self.operation

        def run(*starts: Tensor) -> Tensor:
            fresh = {id(operand): start for operand, start in zip(operands, starts, strict=True)}
            return operation.map_arguments(lambda value: fresh.get(id(value), value)).run()

        return replace(call, beside_held=run), operands

    def make(self, call_class: type[calls.SomeCall], **fields: Any) -> calls.SomeCall:
        return call_class(
            step=self.step, operation=self.operation.name, place=self.place, samples=self.find_samples(), **fields
        )

    def find_samples(self) -> SampleGroups | None:
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

    # --- linear layers -----------------------------------------------------------------------------------------------

    def describe_linear(self) -> CallAndOperands | None:
        x, weight, bias = self.operation.linear_arguments()
        is_constant = not weight.requires_grad and (bias is None or not bias.requires_grad)
        weight = restore_weight(weight)
        return (self.make(calls.LinearCall, weight=weight, bias=bias), [x]) if is_constant else None

    def describe_convolution(self) -> CallAndOperands | None:
        x, weight, bias = self.operation.linear_arguments()
        if weight.requires_grad:
            return None
        function, more = self.operation.function, self.operation.args[3:]
        options = {k: v for k, v in self.operation.kwargs.items() if k not in ("input", "weight", "bias")}
        per_channel = bias.view(-1, *(1,) * (self.result.dim() - 2)) if bias is not None else None
        call = self.make(
            calls.ConvolutionCall,
            kind="pixels" if trace_of(x).is_pixels else "linear",
            weight=weight,
            bias=per_channel,
            convolve=lambda start, w: function(start, w, None, *more, **options),
        )
        return call, [x]

    # --- attention, activations, norms -------------------------------------------------------------------------------

    def describe_attention(self) -> CallAndOperands:
        given = read_fused_arguments(self.operation)
        query, key, value = given[:3]
        call = self.make(
            calls.AttentionCall,
            score_mask=given.mask,
            scale=given.scale,
            is_grouped=given.is_grouped,
            has_bias=is_attention_bias(given.mask.given, key.size(-2)),
            carrying=(query.requires_grad, key.requires_grad, value.requires_grad),
            factors=getattr(self.result, "_whyformer_factors", None),
        )
        return call, [query, key, value]

    def describe_activation(self) -> CallAndOperands | None:
        x = self.operation.given[0]
        return (self.make(calls.ActivationCall, run=self.as_function_of(x)), [x]) if x.requires_grad else None

    def describe_softmax(self) -> CallAndOperands | None:
        x = self.operation.given[0]
        if not x.requires_grad:
            return None
        axis = self.operation.argument(1, "dim", "axis")
        is_plain = self.operation.name in ("softmax", "_softmax")
        return self.make(calls.SoftmaxCall, axis=-1 if axis is None else axis, is_plain=is_plain), [x]

    def describe_norm(self) -> CallAndOperands | None:
        x = self.operation.given[0]
        if not x.requires_grad:
            return None
        shape = self.operation.argument(1, "normalized_shape") if self.operation.name in NORMS_BY_SHAPE else ()
        is_by_token = isinstance(shape, list | tuple) and len(shape) == 1
        return self.make(calls.NormCall, linearised=hold_spread(self.operation), is_by_token=is_by_token), [x]

    def describe_spelled_out_activation(self, first: Tensor, second: Tensor) -> CallAndOperands:
        """A step of an activation that the model spells out: two functions of one tensor, combined entry by entry. The
        operand that is this tensor, or a multiple of it, comes first and gets the relevance."""
        run = as_function(self.operation)
        if is_straight(second) and not is_straight(first):
            return self.make(calls.ActivationCall, run=lambda a, b: run(b, a)), [second, first]
        return self.make(calls.ActivationCall, run=run), [first, second]

    def as_function_of(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The operation as a function of one operand, the others as they were."""
        operation = self.operation
        return lambda start: operation.map_arguments(lambda value: start if value is x else value).run()

    # --- products and sums -------------------------------------------------------------------------------------------

    def describe_product(self) -> CallAndOperands:
        operation = self.operation
        if self.is_plain_linear():
            return self.make(calls.LinearCall, weight=operation.args[1].t()), operation.carrying
        is_plain = operation.name in ("matmul", "bmm") and len(operation.carrying) == 2
        run = torch.matmul if is_plain else as_function(operation)
        return self.make(calls.ProductCall, run=run, gate=find_gate(operation.carrying)), operation.carrying

    def is_plain_linear(self) -> bool:
        """x @ W with a constant matrix W."""
        operation = self.operation
        if operation.name not in ("matmul", "mm") or len(operation.carrying) != 1:
            return False
        return operation.carrying[0] is operation.args[0] and operation.args[1].dim() == 2

    def describe_addition(self) -> CallAndOperands | None:
        operation, carrying = self.operation, self.operation.carrying
        if len(carrying) == 1:
            return self.describe_constant_addition(carrying[0])
        first, second = carrying
        if trace_of(second).is_statistic:
            return self.make(calls.NormaliseCall), [first, second]
        if get_root(first) is get_root(second) and first.shape == second.shape:
            return self.describe_spelled_out_activation(first, second)
        signs = self.read_signs()
        if first is not operation.argument(0, "input"):
            signs = signs[::-1]
        return self.make(calls.AdditionCall, signs=signs), [first, second]

    def read_signs(self) -> tuple[float, float]:
        """The factors of the two addends: -1 where one is subtracted, or `alpha`."""
        alpha = self.operation.kwargs.get("alpha", 1)
        if self.operation.name == "rsub":
            return -alpha, 1
        return (1, -alpha) if "sub" in self.operation.name else (1, alpha)

    def describe_constant_addition(self, x: Tensor) -> CallAndOperands:
        addends = self.operation.argument(0, "input"), self.operation.argument(1, "other")
        place = next(i for i, addend in enumerate(addends) if addend is not x)
        constant, signs, positions = addends[place], self.read_signs(), None
        if is_mask(constant):
            kind, constant_is = "mask", "mask"
        elif is_per_channel(constant, self.result):
            kind, constant_is = "bias", "biases"
        else:
            kind, constant_is = "add", "positions and other constants"
            if self.result.dim() == 3:  # a bias on attention scores has more axes, and belongs to pairs of tokens
                positions = self.find_positions(constant)
        if isinstance(constant, Tensor) or signs[place] != 1:
            constant = (constant.detach() if isinstance(constant, Tensor) else constant) * signs[place]
        call = self.make(
            calls.AdditionCall,
            kind=kind,
            signs=(signs[1 - place], 1),
            constant=constant,
            constant_is=constant_is,
            positions=positions,
        )
        return call, [x]

    def find_positions(self, constant: Any) -> Trace | None:
        """Where the tokens of the result are, if the constant has a vector for each of them."""
        trace = trace_of(self.result)
        tokens = provenance.broadcast_label(trace.tokens, self.result.shape)
        axis = provenance.axis_of(tokens)
        if not isinstance(constant, Tensor) or axis is None or axis == self.result.dim() - 1:
            return None
        if constant.dim() == 0 or constant.size(-1) == 1:
            return None
        behind = self.result.dim() - axis
        if constant.dim() < behind or constant.size(-behind) == 1 or is_binary(constant):
            return None
        return Trace(samples=provenance.broadcast_label(trace.samples, self.result.shape), tokens=tokens)

    def describe_multiplication(self) -> CallAndOperands:
        operation, carrying = self.operation, self.operation.carrying
        divides = operation.name in operations.DIVISIONS
        if len(carrying) == 1:
            return self.describe_scaling(carrying[0], divides)
        first, second = carrying
        for x, other in ((first, second), (second, first)):
            if trace_of(other).is_statistic and not (divides and other is first):
                return self.describe_normalising(x, other)
        if get_root(first) is get_root(second) and first.shape == second.shape:
            return self.describe_spelled_out_activation(first, second)
        if divides:
            return self.describe_normalising(first, second)
        return self.make(calls.ProductCall, run=as_function(operation), gate=find_gate(carrying)), carrying

    def describe_normalising(self, x: Tensor, statistic: Tensor) -> CallAndOperands:
        return self.make(calls.NormaliseCall, linearised=self.as_function_of(x)), [x, statistic]

    def describe_scaling(self, x: Tensor, divides: bool) -> CallAndOperands:
        first = self.operation.argument(0, "input")
        factor = next(a for a in (first, self.operation.argument(1, "other", default=-1.0)) if a is not x)
        if divides and (first is not x or self.operation.name.startswith("r")):
            return self.make(calls.ActivationCall, run=as_function(self.operation)), [x]  # a number divided by x
        if divides:
            return self.make(calls.ScaleCall, factor=1.0), [x]
        return self.make(calls.ScaleCall, factor=factor, positions=self.find_positions(factor)), [x]

    # --- entries and parts -------------------------------------------------------------------------------------------

    def describe_selection(self) -> CallAndOperands:
        index = self.operation.args[1]
        return self.make(calls.SelectCall, index=index, run=lambda x: x[index]), self.operation.carrying[:1]

    def describe_concatenation(self) -> CallAndOperands:
        parts, axis = self.operation.concatenation_arguments()
        is_stack = self.operation.name == "stack"
        call = self.make(
            calls.JoinCall,
            axis=axis,
            sizes=[1 if is_stack else part.size(axis) for part in parts],
            carrying=[part.requires_grad for part in parts],
            is_stack=is_stack,
        )
        return call, [part for part in parts if part.requires_grad]

    def describe_reduction(self) -> CallAndOperands | None:
        if len(self.operation.carrying) != 1:
            return None
        return self.make(calls.PoolCall, run=as_function(self.operation)), self.operation.carrying


DESCRIPTIONS: tuple[tuple[frozenset[str], Callable[[CallBuilder], CallAndOperands | None]], ...] = (
    (frozenset(("linear",)), CallBuilder.describe_linear),
    (operations.CONVOLUTIONS, CallBuilder.describe_convolution),
    (frozenset((operations.FUSED_ATTENTION,)), CallBuilder.describe_attention),
    (operations.ACTIVATIONS, CallBuilder.describe_activation),
    (operations.SOFTMAXES, CallBuilder.describe_softmax),
    (operations.NORMS, CallBuilder.describe_norm),
    (operations.PRODUCTS, CallBuilder.describe_product),
    (operations.ADDITIONS, CallBuilder.describe_addition),
    (operations.MULTIPLICATIONS, CallBuilder.describe_multiplication),
    (frozenset(("getitem",)), CallBuilder.describe_selection),
    (operations.CONCATENATIONS, CallBuilder.describe_concatenation),
    (
        operations.POOLS | operations.STATISTICS | operations.RESIZES | operations.LINEAR_IN_ONE,
        CallBuilder.describe_reduction,
    ),
)


def needs_no_rule(operation: Operation) -> bool:
    """The gradient of a view is what a rule would do. Picking one entry needs a rule: the released code divides
    there."""
    plain = operations.VIEWS | operations.IDENTITIES | operations.EXTREMA | operations.HARMLESS
    return operation.name in plain and not (operation.name == "getitem" and picks_one(operation.args[1]))


def picks_one(index: Any) -> bool:
    """x[:, 0] and the like, which take one entry of an axis."""
    return isinstance(index, int) or (isinstance(index, tuple) and any(isinstance(i, int) for i in index))


def as_function(operation: Operation) -> Callable[..., Tensor]:
    """The operation as a function of its operands that depend on the input, in order."""

    def run(*operands: Tensor) -> Tensor:
        fresh = iter(operands)
        return operation.map_arguments(
            lambda value: next(fresh) if isinstance(value, Tensor) and value.requires_grad else value
        ).run()

    return run


def hold_spread(operation: Operation) -> NormFunction | None:
    """A norm without bias as a linear function of x, its spread held constant; None if it is linear as it is."""
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
    if operation.name == "batch_norm" and not given(5, "training", default=False):
        spread = (given(2, "running_var") + given(7, "eps", default=1e-5)).sqrt()
        return lambda start: apply_weight(apply_weight(start, 1 / spread, 1), given(3, "weight"), 1)
    if operation.name == "instance_norm" and given(5, "use_input_stats", default=True):
        return lambda start: apply_weight(
            normalise_by_group(start, x, x.size(1), given(7, "eps", default=1e-5)), given(3, "weight"), 1
        )
    return None


def restore_weight(weight: Tensor) -> Tensor:
    """The numbers that the codes of a quantised weight stand for (torchao); other weights as they are."""
    is_plain = type(weight) in (Tensor, torch.nn.Parameter)
    return weight if is_plain or not hasattr(weight, "qdata") else weight.dequantize()


def normalise_by_group(start: Tensor, x: Tensor, groups: int, eps: float) -> Tensor:
    """`start` with each group of channels centred, and divided by the spread of x in that group."""
    own, reference = (t.reshape(x.size(0), groups, -1) for t in (start, x))
    spread = (reference.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    return ((own - own.mean(-1, keepdim=True)) / spread).reshape(x.shape)


def apply_weight(x: Tensor, weight: Tensor | None, axis: int | None = None) -> Tensor:
    if weight is None:
        return x
    return x * (weight if axis is None else weight.view(-1, *(1,) * (x.dim() - 1 - axis)))


def find_gate(factors: list[Tensor]) -> calls.Gate | None:
    """Which of two factors is a gate: the only one that is attention, or else the only one that is an activation."""
    if len(factors) != 2:
        return None
    attention = [place for place, factor in enumerate(factors) if trace_of(factor).is_attention]
    if len(attention) == 1:
        return calls.Gate(attention[0], is_attention=True)
    activations = [place for place, factor in enumerate(factors) if not is_straight(factor)]
    return calls.Gate(activations[0], is_attention=False) if len(activations) == 1 else None


def is_binary(constant: Tensor) -> bool:
    """Only ones and zeros: it marks which entries count, not where they are."""
    return bool(((constant == 0) | (constant == 1)).all())


def is_mask(constant: Any) -> bool:
    """Zero where attention is allowed, very low where it is not."""
    return isinstance(constant, Tensor) and bool(((constant == 0) | (constant <= calls.MASK_CEILING)).all())


def is_attention_bias(mask: Tensor | None, keys: int) -> bool:
    """Numbers for each pair of tokens that are added to scores, and not just zero or very low."""
    if mask is None or mask.dtype == torch.bool or mask.numel() <= keys:  # one per key counts as a mask, as in eager
        return False
    return not is_mask(mask)


def is_per_channel(constant: Any, result: Tensor) -> bool:
    """A number, or one number per channel: a bias."""
    if not isinstance(constant, Tensor):
        return True
    return constant.numel() == 1 or (constant.numel() == result.size(-1) and constant.size(-1) == result.size(-1))
