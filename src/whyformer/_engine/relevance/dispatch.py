"""From an operation to its call: which kind of operation it is, and what its rule must know about it.

The classes of calls, one for each kind of operation, are in calls.py; the rule for each kind is the recipe's choice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.relevance import calls
from whyformer._engine.tracing import operations, provenance
from whyformer._engine.tracing.composites import detach_constants
from whyformer._engine.tracing.follow import contract_label, follow_einsum, follow_product, get_root, is_straight
from whyformer._engine.tracing.fused_attention import read_fused_arguments
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import SampleGroups, Trace, trace_of
from whyformer._engine.tracing.softmax import step_of

NORMS_BY_SHAPE = {"layer_norm", "rms_norm"}
CallAndOperands = tuple[calls.OperationCall, list[Tensor]]  # the operands share the relevance
NormFunction = Callable[[Tensor], Tensor]


class CallBuilder:
    """Describes one operation of a module as a call."""

    def __init__(self, operation: Operation, result: Tensor, *, batch: int, step: int, place: str) -> None:
        self.operation, self.result = detach_constants(operation), result
        self.has_constants = self.operation is not operation
        self.batch, self.step, self.place = batch, step, place

    def build(self) -> CallAndOperands | None:
        """The call and its operands; None if there is no rule for such an operation."""
        name = self.operation.name
        step = step_of(self.result, "weights")
        if step is not None and step.scores.requires_grad:  # the end of a softmax that the model writes out
            return self.make(calls.SoftmaxCall, axis=step.axis), [step.scores]
        described = DESCRIPTIONS[name](self) if name in DESCRIPTIONS else None
        if described is not None and self.has_constants:
            call, operands = described
            return replace(call, beside_constants=as_function_of(self.operation, *operands)), operands
        return described

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
                label = follow_einsum(operation).samples
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

    def describe_function(self) -> CallAndOperands | None:
        """An activation, a softmax or a norm of its first operand."""
        operation, x = self.operation, self.operation.given[0]
        if not x.requires_grad:
            return None
        if operation.name in operations.ACTIVATIONS:
            is_logarithm = operation.name in operations.LOGARITHMS
            return self.make(calls.ActivationCall, run=as_function_of(operation, x), is_logarithm=is_logarithm), [x]
        if operation.name in operations.SOFTMAXES:
            axis, is_plain = operation.argument(1, "dim", "axis"), operation.name in ("softmax", "_softmax")
            return self.make(calls.SoftmaxCall, axis=-1 if axis is None else axis, is_plain=is_plain), [x]
        shape = operation.argument(1, "normalized_shape") if operation.name in NORMS_BY_SHAPE else ()
        is_by_token = isinstance(shape, list | tuple) and len(shape) == 1
        return self.make(calls.NormCall, linearised=hold_spread(operation), is_by_token=is_by_token), [x]

    def describe_spelled_out_activation(self, first: Tensor, second: Tensor) -> CallAndOperands:
        """A step of an activation that the model spells out: two functions of one tensor, combined entry by entry. The
        operand that is this tensor, or a multiple of it, comes first and gets the relevance."""
        run = as_function(self.operation)
        if is_straight(second) and not is_straight(first):
            return self.make(calls.ActivationCall, run=lambda a, b: run(b, a)), [second, first]
        return self.make(calls.ActivationCall, run=run), [first, second]

    # --- products and sums -------------------------------------------------------------------------------------------

    def describe_product(self) -> CallAndOperands:
        operation, operands = self.operation, self.operation.dependent
        if operation.name in ("matmul", "mm") and len(operands) == 1:
            x, weight = operation.args[:2]
            if operands[0] is x and weight.dim() == 2:
                return self.make(calls.LinearCall, weight=weight.t()), operands
        is_plain = operation.name in ("matmul", "bmm") and len(operands) == 2
        run = torch.matmul if is_plain else as_function(operation)
        return self.make(calls.ProductCall, run=run, gate=find_gate(operands)), operands

    def describe_addition(self) -> CallAndOperands | None:
        operation, operands = self.operation, self.operation.dependent
        if len(operands) == 1:
            return self.describe_constant_addition(operands[0])
        first, second = operands
        if trace_of(second).is_statistic:
            return self.make(calls.NormaliseCall), [first, second]
        if get_root(first) is get_root(second) and first.shape == second.shape:
            return self.describe_spelled_out_activation(first, second)
        signs = self.read_signs()
        signs = signs if first is operation.argument(0, "input") else signs[::-1]
        return self.make(calls.AdditionCall, signs=signs), [first, second]

    def read_signs(self) -> tuple[float, float]:
        """The factors of the two addends: -1 where one is subtracted, or `alpha`."""
        alpha = self.operation.kwargs.get("alpha", 1)
        if self.operation.name == "rsub":
            return -alpha, 1
        return (1, -alpha) if "sub" in self.operation.name else (1, alpha)

    def describe_constant_addition(self, x: Tensor) -> CallAndOperands:
        addends = self.operation.argument(0, "input"), self.operation.argument(1, "other")
        index = next(i for i, addend in enumerate(addends) if addend is not x)
        constant, signs, positions = addends[index], self.read_signs(), None
        if is_mask(constant):
            kind, constant_is = "mask", "mask"
        elif is_per_channel(constant, self.result) or (self.batch > 1 and self.is_same_for_all(constant)):
            kind, constant_is = "bias", "biases"
        else:
            kind, constant_is = "add", "positions and other constants"
            if self.result.dim() == 3:  # a bias on attention scores has more axes, and belongs to pairs of tokens
                positions = self.find_positions(constant)
        if isinstance(constant, Tensor) or signs[index] != 1:
            constant = (constant.detach() if isinstance(constant, Tensor) else constant) * signs[index]
        fields = {"kind": kind, "constant": constant, "constant_is": constant_is, "positions": positions}
        return self.make(calls.AdditionCall, signs=(signs[1 - index], 1), **fields), [x]

    def is_same_for_all(self, constant: Argument) -> bool:
        """One vector for the only token of each example, [batch 1 channel], and the same for all: a class token."""
        if not isinstance(constant, Tensor) or constant.dim() != 3 or constant.shape != self.result.shape:
            return False
        if constant.shape[:2].numel() != self.batch or 1 not in constant.shape[:2]:
            return False
        return bool((constant == constant.flatten(0, 1)[0]).all())

    def find_positions(self, constant: Argument) -> Trace | None:
        """Where the tokens of the result are, if the constant has a vector for each of them."""
        trace = trace_of(self.result)
        tokens = provenance.broadcast_label(trace.tokens, self.result.shape)
        axis = provenance.axis_of(tokens)
        if not isinstance(constant, Tensor) or axis is None or axis == self.result.dim() - 1:
            return None
        behind = self.result.dim() - axis
        if constant.dim() < behind or constant.size(-1) == 1 or constant.size(-behind) == 1:
            return None
        if bool(((constant == 0) | (constant == 1)).all()):  # it marks which entries count, not where they are
            return None
        return Trace(samples=provenance.broadcast_label(trace.samples, self.result.shape), tokens=tokens)

    def describe_multiplication(self) -> CallAndOperands:
        operation, operands = self.operation, self.operation.dependent
        divides = operation.name in operations.DIVISIONS
        if len(operands) == 1:
            return self.describe_scaling(operands[0], divides)
        first, second = operands
        by_statistic = [(x, other) for x, other in ((first, second), (second, first)) if trace_of(other).is_statistic]
        x, statistic = next((pair for pair in by_statistic if not (divides and pair[1] is first)), (first, None))
        if statistic is None and get_root(first) is get_root(second) and first.shape == second.shape:
            return self.describe_spelled_out_activation(first, second)
        if statistic is None and not divides:
            return self.make(calls.ProductCall, run=as_function(operation), gate=find_gate(operands)), operands
        linearised = as_function_of(operation, x)
        return self.make(calls.NormaliseCall, linearised=linearised), [x, second if statistic is None else statistic]

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
        return self.make(calls.SelectCall, index=index, run=lambda x: x[index]), self.operation.dependent[:1]

    def describe_reduction(self) -> CallAndOperands | None:
        operands = self.operation.dependent
        return (self.make(calls.PoolCall, run=as_function(self.operation)), operands) if len(operands) == 1 else None

    def describe_sampling(self) -> CallAndOperands | None:
        """Deformable attention reads an image at points that depend on the states: these are constants."""
        image = self.operation.argument(0, "input")
        if not isinstance(image, Tensor) or not image.requires_grad:
            return None
        held = self.operation.map_arguments(
            lambda value: value.detach() if isinstance(value, Tensor) and value is not image else value
        )
        return self.make(calls.SamplingCall, run=as_function_of(held, image)), [image]

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


DESCRIPTIONS: dict[str, Callable[[CallBuilder], CallAndOperands | None]] = {
    name: describe
    for names, describe in (
        (
            operations.POOLS | operations.STATISTICS | operations.RESIZES | operations.LINEAR_IN_ONE,
            CallBuilder.describe_reduction,
        ),
        (operations.SAMPLINGS, CallBuilder.describe_sampling),
        (operations.CONCATENATIONS, CallBuilder.describe_concatenation),
        (operations.MULTIPLICATIONS, CallBuilder.describe_multiplication),
        (operations.ADDITIONS, CallBuilder.describe_addition),
        (operations.PRODUCTS, CallBuilder.describe_product),
        (operations.NORMS | operations.SOFTMAXES | operations.ACTIVATIONS, CallBuilder.describe_function),
        (operations.CONVOLUTIONS | operations.TRANSPOSED_CONVOLUTIONS, CallBuilder.describe_convolution),
        ({operations.FUSED_ATTENTION}, CallBuilder.describe_attention),
        ({"getitem"}, CallBuilder.describe_selection),
        ({"linear"}, CallBuilder.describe_linear),
    )
    for name in names
}
WITHOUT_RULE = operations.VIEWS | operations.IDENTITIES | operations.EXTREMA | operations.HARMLESS


def needs_no_rule(operation: Operation) -> bool:
    """The gradient of a view is what a rule would do. Picking one entry, `x[:, 0]`, needs a rule: the released code
    divides there."""
    if operation.name != "getitem":
        return operation.name in WITHOUT_RULE
    index = operation.args[1]
    return not any(isinstance(i, int) for i in (index if isinstance(index, tuple) else (index,)))


def as_function_of(operation: Operation, *operands: Tensor) -> Callable[..., Tensor]:
    """The operation as a function of these operands, the others as they were."""

    def run(*starts: Tensor) -> Tensor:
        fresh = {id(operand): start for operand, start in zip(operands, starts, strict=True)}
        return operation.map_arguments(lambda value: fresh.get(id(value), value)).run()

    return run


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
    attention = [index for index, factor in enumerate(factors) if trace_of(factor).is_attention]
    if len(attention) == 1:
        return calls.Gate(attention[0], is_attention=True)
    activations = [index for index, factor in enumerate(factors) if not is_straight(factor)]
    return calls.Gate(activations[0], is_attention=False) if len(activations) == 1 else None


def is_mask(constant: Argument) -> bool:
    """Zero where attention is allowed, very low where it is not."""
    return isinstance(constant, Tensor) and bool(((constant == 0) | (constant <= calls.MASK_CEILING)).all())


def is_attention_bias(mask: Tensor | None, keys: int) -> bool:
    """Numbers for each pair of tokens that are added to scores, and not just zero or very low."""
    if mask is None or mask.dtype == torch.bool or mask.numel() <= keys:  # one per key counts as a mask, as in eager
        return False
    return not is_mask(mask)


def is_per_channel(constant: Argument, result: Tensor) -> bool:
    """A number, or one number per channel: a bias."""
    if not isinstance(constant, Tensor):
        return True
    return constant.numel() == 1 or (constant.numel() == result.size(-1) and constant.size(-1) == result.size(-1))
