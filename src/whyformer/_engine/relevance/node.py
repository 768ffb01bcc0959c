r"""The node that a rule is in the graph: the true gradient or relevance, as the switch says.

Beside every operation that carries stands a `Node`. Its forward hands the true result on; its backward gives what
arrives to the true operation (`Switch.recipe` is None: the gradient) or lets the recipe share it out among the
operands. So one forward serves both. The switch travels with the node, in `ctx`, since CUDA runs backward passes on
threads of its own.

What a recipe sends back is relevance R itself, or the *slope* s of it, $R = x \odot s$: a gradient with other rules.
Relevance must be divided by results that may be nearly zero; a slope need not be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whyformer._engine.tracing.provenance import SampleGroups
from whyformer.errors import NonFinite, UnsupportedModel

Shares = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Stabiliser:
    """How a division by (nearly) nothing is kept finite."""

    name: str
    describe: str
    amount: float | None = None  # of epsilon, where a recipe has it as a parameter

    def epsilon(self, dtype: torch.dtype) -> float:
        """Below what `dtype` can resolve beside 1, so that it acts only where z is rounding noise, unless it is
        given."""
        if self.amount is not None:
            return self.amount
        return {"signed": torch.finfo(dtype).eps / 100, "released": 1e-9, "none": 0.0}[self.name]

    def divide(self, relevance: Tensor, z: Tensor) -> Tensor:
        epsilon = self.epsilon(z.dtype)
        if self.name == "signed":
            away = torch.copysign(z.new_tensor(epsilon), z).add_(z)
            return torch.div(relevance, away, out=away)
        stable = z + epsilon
        return torch.where(z == 0, 0, relevance / torch.where(stable == 0, epsilon or 1, stable))

    def divide_by_positive(self, relevance: Tensor, z: Tensor) -> Tensor:
        """The same where z is known not to be negative."""
        return relevance / (z + self.epsilon(z.dtype)) if self.name == "signed" else self.divide(relevance, z)


STABILISERS = {
    "signed": Stabiliser("signed", "z moves away from zero: z + eps sign(z), where zero counts by its sign bit"),
    "released": Stabiliser("released", "z + 1e-9 whatever the sign of z; nothing where z = 0 (the authors' code)"),
    "none": Stabiliser("none", "z itself; nothing where z = 0"),
}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A table: kind of operation -> rule. Two are equal if name, stabiliser and parameters are."""

    name: str
    rules: "Mapping[str, Rule]" = field(repr=False)
    describe: str = field(repr=False, default="")
    stabiliser: Stabiliser = STABILISERS["signed"]
    parameters: Mapping[str, float] = field(default_factory=dict)
    sends: Literal["relevance", "slope"] = "relevance"
    attention_part: float = 0.5  # of the relevance of attention @ values, what goes to the attention

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.name, self.stabiliser, tuple(sorted(self.parameters.items()))

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.identity == other.identity


@dataclass
class Switch:
    """The state that the backward passes of one run share with their nodes. Holds no tensor of the graph."""

    recipe: Recipe | None = None
    is_strict: bool = False  # look for the first operation that makes a non-finite value
    absorbed: "dict[tuple[int, str], Tensor] | None" = None  # (step, what took it) -> relevance per example
    placed: "dict[tuple[int, str], Tensor] | None" = None  # (step, "token" or "position") -> relevance [batch token]
    scratch: "dict[Any, Tensor]" = field(default_factory=dict)  # memory for what one rule needs while it works

    def magnitude(self, weight: Tensor) -> Tensor:
        """|W|, in memory that the next weight of this shape will use again."""
        key = (weight.shape, weight.dtype, weight.device)
        if key not in self.scratch:
            self.scratch[key] = torch.empty_like(weight, memory_format=torch.contiguous_format)
        return torch.abs(weight, out=self.scratch[key])


@dataclass(frozen=True)
class OperationCall:
    """One intercepted operation, as its rule needs to see it."""

    kind: str
    step: int  # running number within the forward
    operation: str
    place: str  # module path
    samples: SampleGroups | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    run: Callable[..., Tensor] | None = None  # the operation again, as a function of its carrying operands
    facts: Mapping[str, Any] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)  # the operations its result went into


# What arrives, the result and the operands -> what each operand gets. None instead of shares: as the gradient does.
Rule = Callable[[OperationCall, Tensor, Tensor, list[Tensor], Switch], Shares | None]


class RuleNode(torch.autograd.Function):
    """Passes the true gradient on to the true result, or relevance to the operands."""

    @staticmethod
    def forward(ctx: Any, switch: Switch, call: OperationCall, result: Tensor, *operands: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.switch, ctx.call = switch, call
        ctx.save_for_backward(result, *operands)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, ...]:
        switch, call = ctx.switch, ctx.call
        result, *operands = ctx.saved_tensors
        if arriving is None or switch.recipe is None:
            return None, None, arriving, *(None for _ in operands)
        if len(call.used) > 1 and "add" in call.used:
            arriving = stabilise_clone(call, arriving, result, switch)
        shares = switch.recipe.rules[call.kind](call, arriving, result, operands, switch)
        if shares is None:
            return None, None, arriving, *(None for _ in operands)
        if switch.is_strict:
            _refuse_non_finite(shares, call)
        return None, None, None, *shares


def _refuse_non_finite(shares: Shares, call: OperationCall) -> None:
    if any(share is not None and not bool(share.isfinite().all()) for share in shares):
        raise NonFinite(
            f"The relevance of {call.operation} in {call.place or 'the model'} is not finite. "
            "Try dtype=torch.float64, or look at the inputs for extreme values."
        )


def stabilise_clone(call: OperationCall, relevance: Tensor, x: Tensor, switch: Switch) -> Tensor:
    """The released code also divides where a residual branches off and where a token is picked: x R / (x + 1e-9)."""
    stabiliser = stabiliser_of(switch)
    if stabiliser.name != "released" or sends_slopes(switch):
        return relevance
    kept = x * stabiliser.divide(relevance, x)
    absorb_relevance(switch, call, "stabiliser", lambda: relevance - kept)
    return kept


def absorb_relevance(switch: Switch, call: OperationCall, what: str, lost: Callable[[], Tensor]) -> None:
    """Note relevance that goes to no operand, entry by entry of the result, if somebody keeps the books."""
    if switch.absorbed is not None:
        record_absorbed(switch, call, what, samples_of(call).sum(lost()))


def record_absorbed(switch: Switch, call: OperationCall, what: str, amount: Tensor) -> None:
    """Note relevance that goes to no operand, example by example."""
    if switch.absorbed is not None:
        key = (call.step, what)
        switch.absorbed[key] = switch.absorbed[key] + amount if key in switch.absorbed else amount


def samples_of(call: OperationCall) -> SampleGroups:
    if call.samples is None:
        raise UnsupportedModel(
            f"It could not be followed which entries of {call.operation} in {call.place} belong to which example. "
            "Explain one example at a time."
        )
    return call.samples


def sends_slopes(switch: Switch) -> bool:
    return switch.recipe is not None and switch.recipe.sends == "slope"


def stabiliser_of(switch: Switch) -> Stabiliser:
    assert switch.recipe is not None
    return switch.recipe.stabiliser
