r"""What a step of a planned run does, so that autograd's own backward pass is the relevance pass of a recipe.

Recipes that send slopes (relevance/slopes.py) are true gradients in which some operands are held constant, some results
multiplied by a number, activations replaced by secants, and spreads of norms held constant. Each of these is written
here with as little kept for the backward pass as it needs:

    held operand        detached                                            nothing
    product halved      the gradient of its result times 1/2                what autograd keeps
    gated product       $y = f(g)\,u$:  $s_g = \tfrac12 s\,u\,f(g)/g$, $s_u = \tfrac12 s\,f(g)$    g and u, not f(g)
    secant              $s_x = s\,f(x)/x$                                   x
    spread of a norm    $s_x = \sigma^{-1}(1 - \tfrac1n 11^\top)(w \odot s)$    one number per row
    fused attention     gradients by query, key and value times constants   what the kernel keeps

Linear layers keep nothing, as their weights need no gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.relevance.calls import ActivationCall, SelectCall
from whyformer._engine.relevance.dispatch import CallBuilder
from whyformer._engine.relevance.node import Factors, RuleNode, Switch
from whyformer._engine.relevance.one_token import find_token, mark, token_of
from whyformer._engine.relevance.recipes import Stabiliser
from whyformer._engine.relevance.rules import sum_repeated_heads
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import compute_attention_weights
from whyformer._engine.tracing.fused_attention import (
    NAMES,
    is_prepared,
    prepare_fused_call,
    read_fused_arguments,
    replace_arguments,
)
from whyformer._engine.tracing.in_place import compute_written
from whyformer._engine.tracing.operations import FUSED_ATTENTION, Arguments, Operation, Options
from whyformer._engine.tracing.tiles import BY_SIZE

Function = Callable[..., Any]


class Context(Protocol):
    """What the nodes below keep for their backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    factors: Sequence[float]
    switch: Switch | None
    shape: torch.Size
    axes: tuple[int, ...]
    activation: "Activation"
    call: "Call"

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


class Call(NamedTuple):
    """A call of a function of torch. switch: where one graph is for gradients and for relevance, which pass it is."""

    function: Function
    args: Arguments
    options: Options
    switch: Switch | None = None

    def run(self) -> Any:
        return self.function(*self.args, **self.options)

    def as_operation(self) -> Operation:
        return Operation(operations.name_of(self.function), self.function, self.args, dict(self.options))


Action = Callable[[Call], Any]  # runs a call as the recipe wants it


def find_apply(node: type[torch.autograd.Function]) -> Function:
    """Its `apply` without the layer of Python that transforms such as vmap need: half of what a small node takes."""
    return super(torch.autograd.Function, node).apply  # type: ignore[misc]


def run_without_graph(call: Call) -> Any:
    """The result is held constant wherever it is used: no graph is needed."""
    if len(call.args) == 2 and not call.options and call.function is Tensor.pow:  # in every norm, and faster so
        return call.function(call.args[0].detach(), call.args[1])
    with torch.no_grad():
        return detach_views(call.run())


def detach_views(result: Any) -> Any:
    """Views require a gradient if what they are a view of does, also where no graph is built."""
    if isinstance(result, Tensor):
        return result.detach() if result.requires_grad else result
    if isinstance(result, list | tuple):
        parts = [detach_views(part) for part in result]
        return parts if type(result) is list else tuple(parts)
    return result


@dataclass(frozen=True)
class DetachOperands:
    """Operands that get no relevance are detached; then the operation runs as `inner` says."""

    positions: tuple[int, ...]
    names: tuple[str, ...] = ()
    inner: Action | None = None

    def __call__(self, call: Call) -> Any:
        given, options = list(call.args), call.options
        for position in self.positions:
            given[position] = hold(given[position], call.switch)
        if self.names:
            options = {**options, **{name: hold(options[name], call.switch) for name in self.names}}
        held = call._replace(args=tuple(given), options=options)
        return held.run() if self.inner is None else self.inner(held)


@dataclass(frozen=True)
class WriteResult:
    """A write in place that has an action: it runs out of place, and its result is written."""

    inner: Action

    def __call__(self, call: Call) -> Any:
        target, *rest = call.args
        plain = partial(run_out_of_place, call.function)
        target.copy_(self.inner(call._replace(function=plain, args=(target.clone(), *rest))))
        return target


@dataclass(frozen=True)
class CopyResult:
    """An action whose result the model writes into later: autograd allows no writes into what a node of ours made."""

    inner: Action

    def __call__(self, call: Call) -> Any:
        return self.inner(call).clone()


def run_out_of_place(function: Function, target: Tensor, *args: Any, **options: Any) -> Tensor:
    """What a function would write, as a new tensor."""
    written = compute_written(Operation(operations.name_of(function), function, (target, *args), options), target)
    assert written is not None  # the recorder has computed it
    return written


# --- factors ---------------------------------------------------------------------------------------------------------


class ScaledGradients(torch.autograd.Function):
    """Passes tensors on, and multiplies the gradient of each by a number; under a switch only in relevance passes."""

    @staticmethod
    def forward(ctx: Context, switch: Switch | None, factors: Sequence[float], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.switch, ctx.factors = switch, factors
        return tuple([tensor.view_as(tensor) for tensor in tensors])

    @staticmethod
    def backward(ctx: Context, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if is_gradient_pass(ctx.switch):
            return (None, None, *gradients)
        pairs = zip(gradients, ctx.factors, strict=True)
        return (None, None, *[None if one is None or not factor else one * factor for one, factor in pairs])


apply_scaled_gradients = find_apply(ScaledGradients)


def is_gradient_pass(switch: Switch | None) -> bool:
    """Whether the true gradient is wanted of a graph that is for relevance too."""
    return switch is not None and switch.recipe is None


def scale_gradients(tensors: Sequence[Tensor], factors: Sequence[float], switch: Switch | None = None) -> list[Tensor]:
    """The tensors, with the gradient of each multiplied by a factor; 0 detaches it."""
    is_free = switch is None
    found = [tensor.detach() if is_free and not f else tensor for tensor, f in zip(tensors, factors, strict=True)]
    scaled = [number for number, tensor in enumerate(found) if tensor.requires_grad and factors[number] != 1]
    if scaled:
        of, given = [factors[number] for number in scaled], [found[number] for number in scaled]
        for number, tensor in zip(scaled, apply_scaled_gradients(switch, of, *given), strict=True):
            found[number] = tensor
    return found


def hold(tensor: Tensor, switch: Switch | None) -> Tensor:
    """The tensor, constant in a relevance pass."""
    return scale_gradients([tensor], [0.0], switch)[0]


@dataclass(frozen=True)
class ScaleResult:
    """The true gradient times a number: a product that is halved, a rotation of which the position takes half."""

    factor: float
    is_product: bool = False  # of two tensors, entry by entry

    def __call__(self, call: Call) -> Any:
        if self.is_product and self.factor == 0.5 and call.switch is None:
            for gate, other in (call.args, call.args[::-1]):
                source, activation = getattr(gate, "_whyformer_gate", (None, None))
                if source is not None and isinstance(other, Tensor) and other.shape == gate.shape:
                    return apply_gated_product(source, other, gate.detach(), activation)
        return scale_gradients([call.run()], [self.factor], call.switch)[0]


@dataclass(frozen=True)
class ScaleAttention:
    """Fused attention whose gradients by query, key and value are multiplied by constants (relevance/node.py)."""

    factors: Factors

    def __call__(self, call: Call) -> Tensor:
        function, args, options, switch = call
        if switch is None and self.factors == ONLY_VALUES and HeldAttention.suits(call):
            given = [leave.detach() for leave in args[:2]]
            return apply_held_attention(args[2], call._replace(args=(*given, *args[2:])))
        if is_prepared(args, options):
            return function(*scale_gradients(args, self.factors, switch), **options)
        operation = prepare_fused_call(Operation(FUSED_ATTENTION, function, args, dict(options)), BY_SIZE)
        given = [operation.argument(position, name) for position, name in enumerate(NAMES)]
        changes = dict(zip(NAMES, scale_gradients(given, self.factors, switch), strict=True))
        value, width = changes["value"], changes["query"].size(-1)
        if not value.is_cuda and value.size(-1) < width:  # there is no fused kernel for values of another width
            changes["value"] = F.pad(value, (0, width - value.size(-1)))
        scaled = replace_arguments(operation, changes)
        return function(*scaled.args, **scaled.kwargs)[..., : value.size(-1)]


ONLY_VALUES = (0.0, 0.0, 1.0)
FEWEST_QUERIES, LARGEST_MATRIX = 24, 2**24  # bytes


class HeldAttention(torch.autograd.Function):
    """Fused attention held constant, of which only values have slopes: on a CPU the kernel's backward pass takes twice
    as long, as it also computes those of queries and keys."""

    @staticmethod
    def suits(call: Call) -> bool:
        query, key = call.args[:2] if len(call.args) >= 3 else (None, None)
        if query is None or query.is_cuda or query.dim() != 4 or query.size(2) < FEWEST_QUERIES:
            return False
        is_small = query.shape[:-1].numel() * key.size(-2) * query.element_size() <= LARGEST_MATRIX
        return is_small and query.element_size() >= 4 and not call.options.get("dropout_p") and len(call.args) < 5

    @staticmethod
    def forward(ctx: Context, value: Tensor, call: Call) -> Tensor:
        ctx.call, ctx.shape = call, value.shape
        return call.run()

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        given = read_fused_arguments(ctx.call.as_operation())
        key, mask = given.repeat_heads()[0], given.mask.read(slice(None), given.query, given.key.size(-2))
        weights = compute_attention_weights((given.query * given.scale) @ key.mT, mask)
        return sum_repeated_heads(weights.mT @ slope, given.repeats), None


apply_held_attention = find_apply(HeldAttention)


# --- statistics of norms ---------------------------------------------------------------------------------------------


class ScaledCast(torch.autograd.Function):
    """What x becomes by widening, multiplying with a held statistic and narrowing; its slope takes one product."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, statistic: Tensor, call: Call) -> Tensor:
        ctx.save_for_backward(statistic)
        return call.run()

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return torch.mul(slope, ctx.saved_tensors[0], out=torch.empty_like(slope)), None, None


apply_scaled_cast = find_apply(ScaledCast)


@dataclass(frozen=True)
class KeepStatistic:
    """x times a statistic that is held constant. Norms of 16-bit models do this between two casts (`cast`)."""

    position: int  # of x

    def __call__(self, call: Call) -> Tensor:
        x, statistic = call.args[self.position], call.args[1 - self.position]
        result: Tensor = call.run()
        source = getattr(x, "_whyformer_narrow", None) if call.switch is None else None
        if source is not None and statistic.shape[:-1] == source.shape[:-1] and result.shape == source.shape:
            result._whyformer_scaled = (source, statistic)  # type: ignore[attr-defined]
        return result


def cast(call: Call) -> Any:
    """A cast; one that ends a norm in 16 bits goes back to its start in one step."""
    x = call.args[0]
    source, statistic = getattr(x, "_whyformer_scaled", (None, None))
    if source is not None and call.args[1:] == (source.dtype,) and not call.options:
        return apply_scaled_cast(source, statistic, call)
    result = call.run()
    if isinstance(x, Tensor) and x.element_size() < 4 and result is not x and result.shape == x.shape:
        result._whyformer_narrow = x
    return result


# --- rotary embeddings -----------------------------------------------------------------------------------------------


class HalfRotation(torch.autograd.Function):
    """(-x2, x1) from (x1, x2): its gradient in one piece, and not as a sum of two halves filled up with zeros."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, call: Call) -> Tensor:
        return call.run()

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        first, second = slope.chunk(2, -1)
        return torch.cat((second, -first), -1), None


apply_half_rotation = find_apply(HalfRotation)


def take_part(call: Call) -> Any:
    """x[...], which remembers what it is a part of. In a relevance pass, the tokens beside one that is picked are known
    to have none (relevance/one_token.py)."""
    part, (x, index) = call.run(), call.args
    if not isinstance(part, Tensor):
        return part
    if call.switch is not None and x.requires_grad and find_token(index, tuple(x.shape)) is not None:
        picking = SelectCall(step=0, operation="getitem", place="", index=index, run=lambda start: start[index])
        return RuleNode.apply(call.switch, picking, part, x)
    part._whyformer_part_of = x  # type: ignore[attr-defined]
    return part


def negate(call: Call) -> Tensor:
    """-x, which remembers x."""
    result: Tensor = call.run()
    result._whyformer_negative_of = call.args[0]  # type: ignore[attr-defined]
    return result


def join(call: Call) -> Tensor:
    """A concatenation; of the two halves of a tensor, the second one negated, it is a rotation by a quarter turn."""
    _, args, options, _ = call
    parts = args[0]
    if len(parts) == 2 and (x := find_rotated(*parts)) is not None:
        axis = options.get("dim", options.get("axis", args[1] if len(args) > 1 else 0))
        if axis in (-1, x.dim() - 1) and "out" not in options:
            return apply_half_rotation(x, call)
    return call.run()


def find_rotated(first: Tensor, last: Tensor) -> Tensor | None:
    """x, if these are -x2 and x1 of x = (x1, x2); else None."""
    second: Tensor | None = getattr(first, "_whyformer_negative_of", None)
    x: Tensor | None = getattr(last, "_whyformer_part_of", None)
    if second is None or x is None or id(getattr(second, "_whyformer_part_of", None)) != id(x):
        return None
    half = x.size(-1) // 2
    shape = (*x.shape[:-1], half)
    is_first = last.shape == shape and last.stride() == x.stride() and last.storage_offset() == x.storage_offset()
    behind = x.storage_offset() + half * x.stride(-1)
    is_second = second.shape == shape and second.stride() == x.stride() and second.storage_offset() == behind
    return x if is_first and is_second and 2 * half == x.size(-1) else None


# --- activations -----------------------------------------------------------------------------------------------------


class Activation(NamedTuple):
    """How the values of an activation are computed again in the backward pass."""

    activate: Callable[[Tensor], Tensor]
    stabiliser: Stabiliser
    is_silu: bool


def divide_widely(stabiliser: Stabiliser, y: Tensor, x: Tensor) -> Tensor:
    """y / x, at least in float32: the stabiliser is for that."""
    if x.element_size() >= 4:
        return stabiliser.divide(y, x)
    return stabiliser.divide(y.float(), x.float()).to(x.dtype)


class SecantNode(torch.autograd.Function):
    """f(x), with the slope f(x) / x in the backward pass; keeps x."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, call: Call, activation: Activation) -> Tensor:
        ctx.save_for_backward(x)
        ctx.activation = activation
        return call.run()

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return compute_secant(ctx.activation, x).mul_(slope), None, None


apply_secant = find_apply(SecantNode)


class GatedProduct(torch.autograd.Function):
    """f(g) u with both slopes halved; keeps g and u."""

    @staticmethod
    def forward(ctx: Context, g: Tensor, u: Tensor, activated: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(g, u)
        ctx.activation = activation
        return activated * u

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[override]
        g, u = ctx.saved_tensors
        shared = compute_secant(ctx.activation, g).mul_(slope).mul_(0.5)  # f(g) / g, times the slope
        to_u = shared * g if ctx.needs_input_grad[1] else None
        return shared.mul_(u), to_u, None, None


apply_gated_product = find_apply(GatedProduct)


def compute_secant(activation: Activation, x: Tensor) -> Tensor:
    """f(x) / x, in memory of its own."""
    if activation.is_silu:
        return torch.sigmoid(x)
    return divide_widely(activation.stabiliser, activation.activate(x), x)


class KnownSecant(torch.autograd.Function):
    """A function of x and of what is held constant, with the slope y / x in the backward pass; keeps the ratio."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, y: Tensor, stabiliser: Stabiliser) -> Tensor:
        ctx.shape = x.shape
        ctx.save_for_backward(divide_widely(stabiliser, y, x))
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Context, slope: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        share = slope * ctx.saved_tensors[0]
        return (share.sum_to_size(ctx.shape) if share.shape != ctx.shape else share), None, None


@dataclass(frozen=True)
class TakeSecant:
    """An activation by its secant. is_alone: it is a function of this operand and of numbers."""

    position: int
    stabiliser: Stabiliser
    is_alone: bool

    def __call__(self, call: Call) -> Tensor:
        function, args, options, switch = call
        x = args[self.position]
        if switch is not None:
            secant = ActivationCall(step=0, operation="", place="", run=function)
            return RuleNode.apply(switch, secant, call.run(), x)
        if not self.is_alone:
            with torch.no_grad():
                y = call.run()
            return KnownSecant.apply(x, y, self.stabiliser)
        before, after = args[: self.position], args[self.position + 1 :]

        def activate(start: Tensor) -> Tensor:
            return function(*before, start, *after, **options)

        activation = Activation(activate, self.stabiliser, function is F.silu)
        result = apply_secant(x, call, activation)
        result._whyformer_gate = (x, activation)
        return result


# --- norms -----------------------------------------------------------------------------------------------------------


class ConstantSpread(torch.autograd.Function):
    """A layer norm or RMS norm as a linear map with its spread held constant; keeps one number per row.

    axes: those over which it is centred; an RMS norm is not. Under a switch y has a graph of its own, for gradients.
    """

    @staticmethod
    def forward(
        ctx: Context,
        switch: Switch | None,
        x: Tensor,
        y: Tensor,
        scale: Tensor,
        weight: Tensor | None,
        axes: Sequence[int],
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(scale, weight)
        ctx.switch, ctx.axes = switch, tuple(axes)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Context, slope: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if slope is None or is_gradient_pass(ctx.switch):
            return None, None, slope, None, None, None
        scale, weight = ctx.saved_tensors
        share = (slope if weight is None else slope * weight) * scale
        if ctx.axes:
            share -= share.mean(ctx.axes, keepdim=True)
        share, token = share.to(slope.dtype), token_of(slope)
        return None, share if token is None else mark(share, token), None, None, None, None


apply_constant_spread = find_apply(ConstantSpread)


def read_arguments(call: Call, *names: str) -> list[Any]:
    """The arguments of these names, in the order in which the function takes them; None for what is not given."""
    return [*call.args, *(call.options.get(name) for name in names[len(call.args) :])]


def linearise_layer_norm(call: Call) -> Tensor:
    x, shape, weight, bias, eps = read_arguments(call, "input", "normalized_shape", "weight", "bias", "eps")[:5]
    given = x if call.switch is not None else x.detach()
    y, _, scale = torch.native_layer_norm(given, list(shape), weight, bias, 1e-5 if eps is None else eps)
    return apply_constant_spread(call.switch, x, y, scale.detach(), weight, range(-len(shape), 0))


def linearise_rms_norm(call: Call) -> Tensor:
    x, shape, weight, eps = read_arguments(call, "input", "normalized_shape", "weight", "eps")
    wide = x.detach() if x.element_size() >= 4 else x.detach().float()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = (wide.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + eps).rsqrt()
    with torch.set_grad_enabled(call.switch is not None):
        y = call.run()
    return apply_constant_spread(call.switch, x, y, scale, weight, ())


CONSTANT_SPREADS: dict[str, Action] = {"layer_norm": linearise_layer_norm, "rms_norm": linearise_rms_norm}


# --- rules -----------------------------------------------------------------------------------------------------------


class UnlabelledCalls(CallBuilder):
    """Describes linear layers to their rule, which needs no labels of examples or tokens."""

    def find_samples(self) -> None:
        return None


@dataclass(frozen=True)
class ApplyRule:
    """A linear layer with its rule beside it, as in the full engine, where the rule is no factor: LRP-gamma, say."""

    kind: str

    def __call__(self, call: Call) -> Tensor:
        result: Tensor = call.run()
        described = UnlabelledCalls(call.as_operation(), result, batch=0, step=0, place="").build()
        assert described is not None and call.switch is not None
        rule, operands = described
        return RuleNode.apply(call.switch, replace(rule, kind=self.kind), result, *operands)
