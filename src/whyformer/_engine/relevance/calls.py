r"""Calls: what a relevance rule gets to see of one operation.

A rule is a function of two arguments, `rule(call, arriving) -> Shares | None`. `arriving` is the relevance of the
operation's result (or its slope, in a recipe with `sends="slope"`). The call has everything else: the result and the
operands, and what is particular to the kind of operation, as typed fields of one class per kind.

    kind of operation           class               kind of operation           class
    linear                      LinearCall          select                      SelectCall
    linear, pixels              ConvolutionCall     join                        JoinCall
    product                     ProductCall         pool                        PoolCall
    add, bias, mask             AdditionCall        norm                        NormCall
    scale                       ScaleCall           softmax                     SoftmaxCall
    normalise                   NormaliseCall       activation                  ActivationCall
    attention                   AttentionCall

An *operand* is a tensor that depends on the explained input; weights, biases and other constants are fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.fused_attention import NO_MASK, ScoreMask, take_rows
from whyformer._engine.tracing.operations import Argument
from whyformer._engine.tracing.provenance import SampleGroups, Trace
from whyformer._engine.tracing.tiles import require_memory
from whyformer.errors import MethodError, UnknownOperation, UnsupportedModel

if TYPE_CHECKING:
    from whyformer._engine.relevance.node import FusedFactors, Switch
    from whyformer._engine.relevance.recipes import Recipe
    from whyformer._engine.relevance.rounding import RoundingError

# What each operand gets; None for an operand that gets nothing.
Shares = tuple[Tensor | None, ...]
# The call (of the class for its kind) and what arrives -> shares, or None to let the true gradient pass.
Rule = Callable[..., Shares | None]
SomeCall = TypeVar("SomeCall", bound="OperationCall")
SomeRule = TypeVar("SomeRule", bound=Rule)

MASK_CEILING = -1e4  # an addend this low is a mask
WHOLE_TENSORS = 6  # matrices of all tokens that the rules for attention hold at a time


def act_on_rows(rule: SomeRule) -> SomeRule:
    """Mark a rule that treats the rows of attention [... query key] one by one, so that it can be used in tiles."""
    rule.acts_on_rows = True  # type: ignore[attr-defined]
    return rule


@dataclass(frozen=True, kw_only=True, eq=False)
class OperationCall:
    """One operation of the forward pass. `result`, `operands` and `switch` are there during a relevance pass only."""

    kind: str  # which rule of the recipe is used
    step: int  # running number within the forward pass
    operation: str  # name of the torch function
    place: str  # path of the module
    samples: SampleGroups | None = None  # which example each entry of the result belongs to, if known
    consumers: list[str] = field(default_factory=list)  # the operations that use the result
    # The operation as a function of its operands alone, if it has others that are constant (composites.py)
    beside_constants: Callable[..., Tensor] | None = None
    result: Tensor = field(init=False, repr=False)
    operands: tuple[Tensor, ...] = field(init=False, repr=False)
    switch: Switch = field(init=False, repr=False)

    # --- for rules ---------------------------------------------------------------------------------------------------

    @property
    def operand(self) -> Tensor:
        """The first operand, which for most kinds is the only one."""
        return self.operands[0]

    @property
    def parameters(self) -> Mapping[str, float]:
        """The parameters of the recipe, such as gamma."""
        return self.recipe.parameters

    @property
    def recipe(self) -> Recipe:
        assert self.switch.recipe is not None
        return self.switch.recipe

    @property
    def examples(self) -> SampleGroups:
        """Sums per example, `call.examples.sum(tensor)`, and back, `call.examples.spread(sums)`, for tensors of the
        shape of the result."""
        if self.samples is None:
            raise UnsupportedModel(
                f"Cannot tell which entries of {self.operation} in {self.place} belong to which example. "
                "Explain one example at a time."
            )
        return self.samples

    def divide(self, relevance: Tensor, z: Tensor) -> Tensor:
        """relevance / z, kept finite by the stabiliser of the recipe. Where z nearly cancels, rounding moves the
        relevance, which the estimate of the pass counts."""
        if z.is_complex():
            raise UnknownOperation(
                f"{self.operation} in {self.place or 'the model'} computes complex numbers, which relevance cannot be "
                "divided by. Use a method that sends slopes, such as attnlrp."
            )
        rounding = self.switch.rounding
        if rounding is not None and self.samples is not None and self.may_cancel:
            rounding.note_division(relevance, z, self.recipe.stabiliser.epsilon(z.dtype), self.samples)
        return self.recipe.stabiliser.divide(relevance, z)

    @property
    def may_cancel(self) -> bool:
        """Whether the result is a sum of summands of both signs, so that rounding matters where it is small."""
        return True

    def absorb(self, what: str, lost: Callable[[], Tensor]) -> None:
        """Record relevance that no operand gets: `lost()` has an entry for each entry of the result.

        Does nothing, and does not call `lost`, unless absorbed relevance is tracked (health=True).
        """
        if self.switch.absorbed is not None:
            self.absorb_per_example(what, self.examples.sum(lost()))

    def absorb_per_example(self, what: str, amount: Tensor) -> None:
        """Record relevance that no operand gets: one amount for each example."""
        absorbed = self.switch.absorbed
        if absorbed is not None:
            key = (self.step, what)
            absorbed[key] = absorbed[key] + amount if key in absorbed else amount

    def fit(self, *shares: Tensor) -> Shares:
        """Shares in the shapes of the first operands: sums over what was broadcast. The other operands get nothing."""
        if len(shares) > len(self.operands):
            raise MethodError(
                f"fit() got {len(shares)} shares; {self.operation} in {self.place or 'the model'} has "
                f"{len(self.operands)} operand(s)."
            )
        fitted = tuple(undo_broadcast(share, x) for share, x in zip(shares, self.operands, strict=False))
        return fitted + (None,) * (len(self.operands) - len(shares))

    # --- for the engine ----------------------------------------------------------------------------------------------

    def split_off_weight(self) -> tuple[Self, Tensor | None]:
        """This call without its matrix, if it has one, and the matrix: autograd keeps it, or knows where to get it."""
        return self, None

    def attach(self, switch: Switch, result: Tensor, operands: Sequence[Tensor], weight: Tensor | None = None) -> Self:
        """This call during a relevance pass. A copy, so that no tensor outlives the pass."""
        attached = object.__new__(type(self))
        vars(attached).update(vars(self), switch=switch, result=result, operands=tuple(operands))
        if weight is not None:
            vars(attached)["weight"] = restore_quantised(weight)
        return attached

    def make_part(
        self, call_class: type[SomeCall], result: Tensor, operands: Sequence[Tensor], **fields: Any
    ) -> SomeCall:
        """A call for one of several steps that this operation consists of."""
        part = call_class(step=self.step, operation=self.operation, place=self.place, samples=self.samples, **fields)
        return part.attach(self.switch, result, operands)

    def apply_rule(self, arriving: Tensor) -> Shares | None:
        """What the recipe's rule for this kind of operation gives to the operands."""
        shares = self.recipe.rules[self.kind](self, arriving)
        if shares is not None and (not isinstance(shares, tuple | list) or len(shares) != len(self.operands)):
            returned = f"{len(shares)} shares" if isinstance(shares, tuple | list) else f"a {type(shares).__name__}"
            raise MethodError(
                f"The rule for {self.kind!r} of the recipe {self.recipe.name} must return a tuple with one share for "
                f"each operand ({len(self.operands)} for {self.operation} in {self.place or 'the model'}), or None; "
                f"it returned {returned}."
            )
        return shares

    def stabilise_copy(self, relevance: Tensor) -> Tensor:
        """x R / (x + 1e-9): the released code also divides where a residual branches off and where it picks a token."""
        stabiliser = self.recipe.stabiliser
        if stabiliser.name != "released" or self.recipe.sends == "slope":
            return relevance
        kept = self.result * stabiliser.divide(relevance, self.result)
        self.absorb("stabiliser", lambda: relevance - kept)
        return kept


def restore_quantised(weight: Tensor) -> Tensor:
    """The numbers that the codes of a quantised weight are (torchao); another weight as it is."""
    is_plain = type(weight) in (Tensor, torch.nn.Parameter) or not hasattr(weight, "qdata")
    return weight if is_plain else weight.dequantize()


# --- linear operations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearCall(OperationCall):
    """y = x W^T + b with a constant matrix W [out in]."""

    kind: str = "linear"
    weight: Tensor
    bias: Tensor | None = None  # in a shape that broadcasts to the result

    def split_off_weight(self) -> tuple[Self, Tensor | None]:
        bare = object.__new__(type(self))
        vars(bare).update((name, value) for name, value in vars(self).items() if name != "weight")
        return bare, self.weight

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """The operation with other numbers and without bias."""
        return F.linear(x, weight)

    def apply_transpose(self, s: Tensor, weight: Tensor) -> Tensor:
        """From the shape of the result to the shape of the operand: what the gradient does with s."""
        return torch.matmul(s, weight)

    def take_magnitude(self) -> Tensor:
        """|W|, in memory that the next weight of this shape overwrites."""
        return self.switch.take_magnitude(self.weight)


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvolutionCall(LinearCall):
    """A convolution with constant weights; its kind is "pixels" where x is the image itself."""

    convolve: Callable[[Tensor, Tensor], Tensor]  # (x, weight) -> the convolution without bias

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.convolve(x, weight)

    def apply_transpose(self, s: Tensor, weight: Tensor) -> Tensor:
        return transpose_linear(lambda x: self.convolve(x, weight), self.operand, s)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdditionCall(OperationCall):
    """u + v, or u - v: two operands, or one operand and a constant.

    Its kind is "mask" if the constant is a mask (zero, or so low that softmax makes it zero), "bias" if it is a number
    or has one number per channel, else "add".
    """

    kind: str = "add"
    signs: tuple[float, float] = (1, 1)  # of the two addends: -1 where one is subtracted; includes `alpha`
    constant: Tensor | float | None = None  # already multiplied by its sign
    constant_is: str = "biases"  # what the constant is called in the conservation check
    positions: Trace | None = None  # where the tokens are, if the constant has a vector for each

    @property
    def addends(self) -> tuple[Tensor, Tensor]:
        """u and v, so that u + v is the result; v may be the constant."""
        u, *others = (x if sign == 1 else x * sign for x, sign in zip(self.operands, self.signs, strict=False))
        if others:
            return u, others[0]
        return u, self.constant if isinstance(self.constant, Tensor) else u.new_tensor(self.constant)

    def note_addition(self, to_u: Tensor, to_v: Tensor, totals: tuple[Tensor, Tensor] | None = None) -> None:
        """Count how much rounding moves u R / z and v R / z, and their signs if `totals` decide these."""
        is_attention_bias = self.constant is not None and self.result.dim() > 3  # its scale depends on padded keys
        if self.switch.rounding is not None and self.samples is not None and not is_attention_bias:
            self.switch.rounding.note_addition((to_u, to_v), self.addends, self.result, self.samples, totals)

    def fit(self, *shares: Tensor) -> Shares:
        """The shares of u and v in the shapes of the operands. A constant absorbs its share."""
        if len(self.operands) == 1 and len(shares) == 2:
            self.absorb(self.constant_is, lambda: shares[1])
            shares = shares[:1]
        return super().fit(*shares)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaleCall(OperationCall):
    """x times a constant, or divided by it; then the factor is given as 1."""

    kind: str = "scale"
    factor: Tensor | float
    positions: Trace | None = None  # where the tokens are, if the factor has a vector for each (rotary embedding)


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectCall(OperationCall):
    """x[index] that takes one entry of an axis, such as the class token."""

    kind: str = "select"
    index: Argument = None  # as in x[index], if known
    run: Callable[[Tensor], Tensor]  # x -> the result


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinCall(OperationCall):
    """A concatenation or a stack. Parts that are constant (a class token) are not among the operands."""

    kind: str = "join"
    axis: int
    sizes: Sequence[int]  # of all parts along the axis
    carrying: Sequence[bool]  # which parts are operands
    is_stack: bool = False


# --- operations that are not linear ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class DifferentiableCall(OperationCall):
    """An operation that a rule can run again."""

    run: Callable[..., Tensor]  # the operation as a function of its operands

    def backpropagate(self, s: Tensor) -> tuple[Tensor, ...]:
        """The true gradient of the operation, with s in place of the gradient of its result."""
        return backpropagate(self.run, self.operands, s)


@dataclass(frozen=True)
class Gate:
    """The factor of a product that weights the other one."""

    operand: int  # 0 or 1
    is_attention: bool  # else an activation, as in a gated MLP


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductCall(DifferentiableCall):
    """A product of two operands, or of an operand with a constant: matmul, einsum, or entry by entry."""

    kind: str = "product"
    gate: Gate | None = None

    @property
    def may_cancel(self) -> bool:
        """True for attention @ value. In queries @ keys the scale would depend on padded keys."""
        return self.gate is not None and self.gate.is_attention

    @property
    def is_matmul(self) -> bool:
        """A matrix product of two operands that need no broadcasting."""
        return self.run is torch.matmul and self.operands[0].shape[:-2] == self.operands[1].shape[:-2]

    def apply_rule(self, arriving: Tensor) -> Shares | None:
        if self.switch.rounding is not None and self.gate is not None and self.gate.is_attention:
            self.switch.rounding.note_attention()
        return super().apply_rule(arriving)

    def backpropagate(self, s: Tensor) -> tuple[Tensor, ...]:
        if not self.is_matmul:
            return super().backpropagate(s)
        a, b = self.operands
        return s @ b.mT, a.mT @ s


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolCall(DifferentiableCall):
    """A mean, a sum or another reduction."""

    kind: str = "pool"


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplingCall(PoolCall):
    """An image read at some points, which may depend on the input too: they are held constant."""

    def apply_rule(self, arriving: Tensor) -> Shares | None:
        shares = super().apply_rule(arriving)
        return self.backpropagate(arriving) if shares is None else shares  # none by the points


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationCall(DifferentiableCall):
    """A function of x, entry by entry. With two operands: a step of an activation that the model spells out, where both
    are functions of the same x and the first one is x or a multiple of it."""

    kind: str = "activation"
    is_logarithm: bool = False  # so that its secant through zero may fall where it rises


@dataclass(frozen=True, kw_only=True, eq=False)
class NormCall(OperationCall):
    """A layer norm, RMS norm, batch norm or the like, as one torch function."""

    kind: str = "norm"
    linearised: Callable[[Tensor], Tensor] | None = None  # without bias, spread held constant; None if linear as it is
    is_by_token: bool = False  # each vector along the last axis is normalised by itself


@dataclass(frozen=True, kw_only=True, eq=False)
class NormaliseCall(OperationCall):
    """A step of a norm that the model spells out: x and a statistic of x, which is the second operand."""

    kind: str = "normalise"
    linearised: Callable[[Tensor], Tensor] | None = None  # x scaled by the statistic held constant; None if it is added


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxCall(OperationCall):
    """A softmax."""

    kind: str = "softmax"
    axis: int = -1
    is_plain: bool = True  # not log_softmax or softmin


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall(OperationCall):
    """scaled_dot_product_attention; the operands are query, key and value, [batch head token channel]."""

    kind: str = "attention"
    score_mask: ScoreMask = NO_MASK  # see `mask`
    scale: float
    is_grouped: bool = False  # several heads share a key and a value
    has_bias: bool = False  # the mask is a bias for each pair of tokens, not just zero or very low
    carrying: tuple[bool, bool, bool] = (True, True, True)  # which of query, key and value depend on the input
    factors: FusedFactors | None = None  # what the kernel's own gradients may be multiplied by instead (node.py)

    @property
    def mask(self) -> Tensor | None:
        """What is added to the scores."""
        query, key = self.operands[:2]
        return self.score_mask.read(slice(0, query.size(-2)), query, key.size(-2))

    def choose_tile_rows(self) -> int:
        """How many queries to compute at a time; 0 for all of them at once."""
        query, key = self.operands[:2]
        shape = (*query.shape[:-1], key.size(-2))
        rows = self.switch.tiles.choose_rows(shape, query.element_size())
        if rows and not all(getattr(self.recipe.rules[kind], "acts_on_rows", False) for kind in self.find_steps()):
            require_memory(
                WHOLE_TENSORS * math.prod(shape) * query.element_size(),
                query.device,
                f"Attention of {query.size(-2):,} tokens in {self.place}, whole as {self.recipe.name} needs it",
                "Use a recipe that passes slopes, such as attnlrp or gamma, or fewer tokens.",
            )
            return 0
        return rows

    def find_steps(self) -> set[str]:
        """The kinds of operation that fused attention consists of."""
        masked = not self.score_mask.is_empty
        adds = masked and (self.has_bias or self.recipe.stabiliser.name == "released")
        return {"product", "softmax", *(["mask"] if masked else []), *(["add"] if adds else [])}

    def take_rows(self, rows: slice, rounding: RoundingError | None) -> AttentionCall:
        """The same call for some queries; behind a causal mask, with the keys that they see."""
        query, key, value = self.operands
        keys = min(rows.stop, key.size(-2)) if self.score_mask.is_causal else key.size(-2)
        samples = self.samples
        if samples is not None:
            samples = SampleGroups(take_rows(samples.label, rows), samples.count)
        part = replace(
            self, samples=samples, score_mask=ScoreMask(self.score_mask.read(rows, query, keys)), factors=None
        )
        operands = [query[..., rows, :], key[..., :keys, :], value[..., :keys, :]]
        return part.attach(replace(self.switch, rounding=rounding), self.result[..., rows, :], operands)


# --- building blocks -------------------------------------------------------------------------------------------------


def undo_broadcast(share: Tensor, operand: Tensor) -> Tensor:
    """The share in the shape of the operand: summed over the axes along which the operand was broadcast."""
    return share.sum_to_size(operand.shape) if share.shape != operand.shape else share


def transpose_linear(function: Callable[[Tensor], Tensor], x: Tensor, s: Tensor) -> Tensor:
    """f^T s for a linear function f of tensors like x."""
    return backpropagate(function, [x], s)[0]


def backpropagate(function: Callable[..., Tensor], operands: Sequence[Tensor], s: Tensor) -> tuple[Tensor, ...]:
    """The true gradient of a function by its operands, with s in place of the gradient of its result."""
    with torch.enable_grad():
        starts = [operand.detach().requires_grad_() for operand in operands]
        return torch.autograd.grad(function(*starts), starts, s)
