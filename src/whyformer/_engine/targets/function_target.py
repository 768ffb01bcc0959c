r"""Any function of the output as the explained score.

$$ s_i = f(\text{output})_i, \qquad g = \frac{\partial s}{\partial\,\text{output}} $$

`f` gets what the model returned and gives one number per example. Gradient methods explain the gradient of s. Relevance
methods cannot look into f. They start at the output of the model:

* recipes that send slopes (attnlrp, libragrad, gamma ...) start with the slope g. The relevance put in is
  $\sum_k g_k\,\text{output}_k$. It equals s if f is linear without a constant, such as a sum of logits. Otherwise it is
  the linear part of s at this output, so relevance is not conserved with respect to s: a log-probability is not.
* recipes that send relevance (lrp, transformer attribution) start with $g_k\,\text{output}_k$, the share of every
  number of the output in that sum. Positive and negative shares are propagated one after the other and then subtracted,
  as for a contrast, since rules divide by totals. For a single class, these recipes start with 1 instead (target.py).

A reading for variants (probe.py) calls f on batches in which row i is a variant of example of[i]. If f holds something
for each example, it needs a method `pick_examples(of)`, which returns the function for such a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from whyformer._engine.run.returned import Returned, iterate_tensors, map_tensors
from whyformer._engine.targets.target import Answers, ExplainedAnswer, Target
from whyformer._engine.targets.target_like import TargetLike
from whyformer._engine.tracing.provenance import axis_of, broadcast_label, compute_pooling_weights, trace_of
from whyformer._engine.tracing.token_numbers import TokenNumbers
from whyformer._model import EncodedBatch
from whyformer.errors import TargetError, WhyformerError

ScoreFunction: TypeAlias = Callable[..., Tensor]
Start: TypeAlias = tuple[Tensor, Tensor | None]  # what a backward pass starts from, and what is subtracted from it


@dataclass(frozen=True)
class ReadOutput:
    """A tensor of the output that the score depends on."""

    tensor: Tensor  # in the autograd graph
    slope: Tensor  # of the score, in the same shape

    def sum_per_example(self, amount: Tensor, batch: int) -> Tensor:
        """[batch]: the sum of something in the shape of this output."""
        axis = axis_of(trace_of(self.tensor).samples) or 0
        return amount.transpose(0, axis).reshape(batch, -1).sum(1).double()


@dataclass(frozen=True)
class FunctionAnswer:
    """The value of a function of the output for each example, and the slopes from which relevance starts."""

    score: Tensor  # [batch], detached
    read: tuple[ReadOutput, ...]
    starts_with_slope: bool = False  # recipes that send relevance start with the slope, as for a single class

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(one.tensor for one in self.read)

    def start_gradient(self) -> Tensor:
        """A number whose gradient by the output is that of the score."""
        return sum_products([(one.tensor, one.slope) for one in self.read])

    def start_relevance(self, sends: str) -> Start:
        if sends == "slope":
            return self.start_gradient(), None
        shares = [(one.tensor, self.share_of(one)) for one in self.read]
        positive = sum_products([(tensor, share.clamp(min=0)) for tensor, share in shares])
        against = [(tensor, (-share).clamp(min=0)) for tensor, share in shares]
        has_negative = any(bool(share.any()) for _, share in against)
        return positive, sum_products(against) if has_negative else None

    def share_of(self, one: ReadOutput) -> Tensor:
        """What recipes that send relevance put in at an output."""
        return one.slope if self.starts_with_slope else one.slope * one.tensor.detach()

    @property
    def sent(self) -> dict[str, Tensor]:
        """[batch]: the relevance put in at the output, by what a recipe sends."""
        slopes = [one.sum_per_example(one.slope * one.tensor.detach(), len(self.score)) for one in self.read]
        shares = [one.sum_per_example(self.share_of(one), len(self.score)) for one in self.read]
        return {"slope": torch.stack(slopes).sum(0), "relevance": torch.stack(shares).sum(0)}

    def compute_pooling_weights(self, samples: int, tokens: int, numbers: TokenNumbers | None = None) -> Tensor | None:
        """[samples tokens]: how much of the score is read at each token, in proportion to the size of its slopes."""
        total = torch.zeros(samples, tokens, dtype=torch.float64)
        for one in self.read:
            weights = weigh_tokens(one, samples, tokens, numbers)
            if weights is None:
                return None
            total += weights.cpu() * one.slope.abs().double().sum().cpu()
        return total / total.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


ExplainedScore: TypeAlias = ExplainedAnswer | FunctionAnswer


def weigh_tokens(read: ReadOutput, samples: int, tokens: int, numbers: TokenNumbers | None = None) -> Tensor | None:
    """[samples tokens], rows sum to 1: where this output is read; None if its tokens are not known."""
    trace, slope = trace_of(read.tensor), read.slope.abs().double()
    if trace.read is None and numbers is None:
        label, sample = (broadcast_label(one, slope.shape) for one in (trace.tokens, trace.samples))
        is_each = label is None and slope.dim() >= 3 and slope.shape[:2] == (samples, tokens)
        weights = slope.flatten(2).sum(-1) if is_each else None
        if label is not None and sample is not None:
            label, sample = label.expand(slope.shape), sample.expand(slope.shape)
            kept = (label >= 0) & (sample >= 0) & (slope > 0)
            if not bool(kept.any()) or bool((label[kept] >= tokens).any()):
                return None
            flat = sample[kept].long() * tokens + label[kept].long()
            weights = torch.bincount(flat, slope[kept], minlength=samples * tokens).view(samples, tokens)
        if weights is not None:
            return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return compute_pooling_weights(trace, read.tensor.shape, samples, tokens, numbers)


def find_function(target: TargetLike, versus: TargetLike, batch: int) -> ScoreFunction | None:
    """The target if it is a function of the output; a list of functions, one per example, becomes one."""
    entries = target if isinstance(target, list | tuple) else [target]
    if not any(callable(entry) for entry in entries):
        return None
    if versus is not None:
        raise TargetError("versus cannot be combined with a function as target. Subtract inside the function.")
    if callable(target):
        return target
    functions = tuple(entry for entry in entries if callable(entry))
    if not len(entries) == len(functions) == batch:
        raise TargetError(
            f"target must be one function for all examples, or a list of {batch} functions, one for each example."
        )
    return FunctionPerExample(functions)


@dataclass(frozen=True)
class FunctionPerExample:
    """Row i of the score comes from function i, which is called on the whole batch."""

    functions: tuple[ScoreFunction, ...]

    @property
    def label(self) -> str:
        return ", ".join(dict.fromkeys(name_function(function) for function in self.functions))

    def __call__(self, returned: Returned) -> Tensor:
        batch = len(self.functions)
        return torch.stack([call_function(one, returned, batch)[row] for row, one in enumerate(self.functions)])

    def pick_examples(self, of: Tensor) -> "FunctionPerExample":
        return FunctionPerExample(tuple(self.functions[i] for i in of.tolist()))


def sum_products(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([(tensor * factor.detach()).sum() for tensor, factor in pairs]).sum()


@dataclass(frozen=True)
class FunctionReading:
    """Calls the function on the output for a variant."""

    function: ScoreFunction

    def read(self, encoded: EncodedBatch, returned: Returned, of: Tensor) -> Answers:
        pick = getattr(self.function, "pick_examples", None)
        function = self.function if pick is None else pick(of)
        follow = getattr(function, "follow_tokens", None)
        score = call_function(function if follow is None else follow(encoded), returned, len(of))
        return Answers(score, score, score[:, None])


def call_function(function: ScoreFunction, returned: Returned, batch: int) -> Tensor:
    """The value of the function for every example, checked."""
    try:
        score = function(returned)
    except WhyformerError:
        raise
    except Exception as error:
        raise TargetError(
            f"{refer_to(function)} failed on what the model returned "
            f"({describe_returned(returned)}): {type(error).__name__}: {str(error)[:200]}"
        ) from error
    if not isinstance(score, Tensor) or score.shape != (batch,) or not score.is_floating_point():
        given = f"{list(score.shape)} of {score.dtype}" if isinstance(score, Tensor) else type(score).__name__
        raise TargetError(
            f"{refer_to(function)} must return one number per example, a floating-point "
            f"tensor of shape [{batch}], got {given}. What the model returned: {describe_returned(returned)}."
        )
    if not bool(score.isfinite().all()):
        raise TargetError(f"{refer_to(function)} returned NaN or infinity.")
    return score


def explain_function(
    function: ScoreFunction, returned: Returned, batch: int
) -> tuple[FunctionAnswer, tuple[Target, ...]]:
    """The explained answer and its description. The function sees copies that are cut off from the model."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def cut_off(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        pairs.append((tensor, tensor.detach().clone().requires_grad_()))
        return pairs[-1][1]

    with torch.enable_grad():
        score = call_function(function, map_tensors(returned, cut_off), batch)
        if not score.requires_grad:
            raise TargetError(
                f"{refer_to(function)} does not depend on the output of the model, or not in "
                "a differentiable way (argmax, detach, numpy)."
            )
        slopes = torch.autograd.grad(score.sum(), [copy for _, copy in pairs], allow_unused=True)
    read = [ReadOutput(tensor, slope) for (tensor, _), slope in zip(pairs, slopes, strict=True) if slope is not None]
    if not all(bool(one.slope.isfinite().all()) for one in read):
        raise TargetError(f"{refer_to(function)} has a gradient that is not finite.")
    label = name_function(function)
    targets = tuple(Target(-1, label, value) for value in score.detach().double().tolist())
    used = tuple(one for one in read if bool(one.slope.any())) or tuple(read)
    return FunctionAnswer(score.detach(), used, getattr(function, "starts_with_slope", False)), targets


def name_function(function: ScoreFunction) -> str:
    """`label` of the function if it has one, else its name."""
    label = getattr(function, "label", None)
    if isinstance(label, str):
        return label
    name = getattr(function, "__name__", None) or type(function).__name__
    return "a function of the output" if name == "<lambda>" else str(name)


def refer_to(function: ScoreFunction) -> str:
    """'The target function NAME', for messages."""
    name = getattr(function, "label", None) or getattr(function, "__name__", type(function).__name__)
    return "The target function" if name == "<lambda>" else f"The target function {name}"


def describe_returned(returned: Returned) -> str:
    """The tensors that a model returned, for messages: 'logits [2, 5]'."""
    if isinstance(returned, dict):
        return ", ".join(f"{name} {describe_returned(value)}" for name, value in returned.items())
    shapes = [f"{list(tensor.shape)}" for tensor in iterate_tensors(returned)]
    return ", ".join(shapes[:4]) + (" ..." if len(shapes) > 4 else "")
