r"""Parts: the forward once more, with every state kept as a sum of what each token brought into it.

$$ x_i = \sum_k x_{i \leftarrow k}, \qquad \text{from } x^0_{i \leftarrow k} = [i = k]\,x^0_i \text{ to the logits} $$

The operations of the forward are read off the tape (stream.py) and done to the parts. Linear ones are done as they are;
attention and the statistics of norms are held at what they were, and an activation is the line through 0 and the point
it was at, $f(x) / x$: so everything is linear and parts still add up. A bias belongs to no token; it is shared out
among the parts of each state in proportion to $|b \cdot x_{i \leftarrow k}|$. Of a product of two states (gates) each
takes half.

There are as many parts as tokens, so this takes that many times the memory of a forward: for short sequences.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.residual import OperationTape, linearise_norm
from whyformer._engine.target import Target
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import read_fused_site
from whyformer._engine.tracing.follow import get_root, is_straight
from whyformer._engine.tracing.operations import Operation, find_tensors
from whyformer._engine.tracing.provenance import trace_of
from whyformer.errors import UnknownOperation, UnsupportedModel

MOST_TOKENS = 128  # tokens
PARTWISE_OPERATIONS = operations.VIEWS | operations.IDENTITIES | operations.CONCATENATIONS | operations.POOLS


def compute_answer_parts(
    tape: OperationTape, state: Tensor, turned: bool, output: Tensor, targets: Sequence[Target]
) -> Tensor:
    """[batch token]: what each token brought into the explained logit, from what entered the first block.

    turned: that state is kept as [token batch channel].
    """
    length = state.size(0 if turned else 1)
    if length > MOST_TOKENS:
        raise UnsupportedModel(
            f"A part for each of {length} tokens of every state is too much to keep; up to {MOST_TOKENS} tokens can be "
            "taken apart. Use a shorter text, or a method without parts (lrp, gradient_x_input)."
        )
    with torch.no_grad():
        replay = PartsReplay(tape, output)
        own = torch.eye(length, dtype=state.dtype, device=state.device)
        own = own[:, :, None, None] if turned else own[:, None, :, None]
        replay.parts[id(state)] = state.detach() * own
        found = replay.logits([target.position for target in targets])  # part batch class
    rows = torch.arange(len(targets), device=found.device)
    scores = found[:, rows, [target.index for target in targets]]
    for row, target in enumerate(targets):
        if target.versus is not None:
            scores[:, row] -= found[:, row, target.versus]
    return scores.T


class PartsReplay:
    """Does to the parts what the tape did to the states."""

    def __init__(self, tape: OperationTape, output: Tensor) -> None:
        self.tape, self.output = tape, output
        self.parts: dict[int, Tensor] = {}
        self.wanted, self.last_use = find_ancestors(tape, output)

    def logits(self, positions: Sequence[int | None]) -> Tensor:
        """[part batch class]; of a language model at the explained position."""
        for number, (op, result) in enumerate(self.tape):
            results = [result] if isinstance(result, Tensor) else list(find_tensors([result]))
            if any(id(t) in self.wanted for t in results) and self.carriers(op, result):
                if result is self.output and op.name == "linear" and result.dim() == 3 and positions[0] is not None:
                    return self.apply_at_positions(op, positions)
                self.follow(op, result, results)
            for tensor in op.given:
                if self.last_use.get(id(tensor)) == number and tensor is not self.output:
                    self.parts.pop(id(tensor), None)
        if id(self.output) not in self.parts:
            raise UnsupportedModel("The parts of the tokens were lost on the way to the answer. Use another method.")
        found = self.parts[id(self.output)]
        if found.dim() == 2:
            return found[..., None]
        if positions[0] is None:
            return found
        return found[:, torch.arange(len(positions)), list(positions)]

    def apply_at_positions(self, op: Operation, positions: Sequence[int | None]) -> Tensor:
        """The last map of a language model, at one position of each example only."""
        given, weight, bias = op.linear_arguments()
        at = (torch.arange(len(positions)), list(positions))
        found = F.linear(self.parts[id(given)][:, *at], weight)
        return found if bias is None else share_bias(found, self.output[at])

    def carriers(self, op: Operation, result: Any) -> list[Tensor]:
        return [t for t in find_part_operands(op, result) if id(t) in self.parts]

    def follow(self, op: Operation, result: Any, results: list[Tensor]) -> None:
        through = self.carriers(op, result)
        if op.name in PARTWISE_OPERATIONS:
            others = {id(t): torch.zeros_like(t) for t in op.given if t.is_floating_point()}  # they have no parts
            made = self.apply_per_part(op, through, others)
        else:
            made = [self.combine_parts(op, result, through)]
        for tensor, parts in zip(results, made, strict=True):
            self.parts[id(tensor)] = parts

    def apply_per_part(self, op: Operation, through: list[Tensor], others: dict[int, Tensor]) -> list[Tensor]:
        """An operation done to each part, with something else in the place of what has none."""
        found = []
        for k in range(len(self.parts[id(through[0])])):
            here = others | {id(t): self.parts[id(t)][k] for t in through}
            made = op.map_arguments(lambda value, here=here: here.get(id(value), value)).run()  # type: ignore[misc]
            found.append([made] if isinstance(made, Tensor) else list(find_tensors([made])))
        return [torch.stack(column) for column in zip(*found, strict=True)]

    def combine_parts(self, op: Operation, result: Tensor, through: list[Tensor]) -> Tensor:
        name, first = op.name, through[0]
        parts = self.parts[id(first)]
        result = result.detach()
        if name == "linear":
            found = F.linear(parts, op.linear_arguments()[1])
            return found if op.linear_arguments()[2] is None else share_bias(found, result)
        if name == "addmm" and op.argument(1, "mat1") is first:
            return share_bias(parts @ op.argument(2, "mat2"), result)
        if name == operations.FUSED_ATTENTION:
            return self.mixed(op, result, parts)
        if name in ("layer_norm", "rms_norm"):
            norm = linearise_norm(op, lambda t: t.detach())
            return share_bias(norm.part(parts) * norm.scale[..., None], result)
        if name in operations.ACTIVATIONS:
            return parts * compute_secant_slope(result, first)
        if name in operations.ADDITIONS:
            return self.added(op, result, through)
        if name in operations.MULTIPLICATIONS:
            return self.multiplied(op, result, through)
        if name in ("matmul", "bmm", "mm") and len(through) == 1:
            left, right = op.args[:2]
            return torch.matmul(parts, right.detach()) if left is first else torch.matmul(left.detach(), parts)
        if name == "einsum" and len(through) == 1:
            return self.apply_per_part(op, through, {})[0]
        raise UnknownOperation(f"Parts cannot be sent through {name}. Use another method.")

    def mixed(self, op: Operation, output: Tensor, parts: Tensor) -> Tensor:
        """Fused attention, its matrix held."""
        site = read_fused_site(op, output, "the model")
        repeats = site.value.size(-3) // parts.size(-3)
        return site.attention() @ (parts.repeat_interleave(repeats, -3) if repeats > 1 else parts)

    def added(self, op: Operation, result: Tensor, through: list[Tensor]) -> Tensor:
        alpha = op.kwargs.get("alpha", 1)
        minus = op.name in ("sub", "rsub", "subtract")
        signs = [1, -alpha if minus else alpha]
        signs = [-alpha, 1] if op.name == "rsub" else signs
        found = sum(
            sign * self.spread(t, result)
            for sign, t in zip(signs, op.args[:2], strict=False)
            if isinstance(t, Tensor) and id(t) in self.parts
        )
        assert isinstance(found, Tensor)
        return found if len(through) > 1 else share_bias(found, result)

    def multiplied(self, op: Operation, result: Tensor, through: list[Tensor]) -> Tensor:
        """By something held; or two states, of which each takes half."""
        first = through[0]
        parts = self.spread(first, result)
        if op.name == "neg":
            return -parts
        a, b = op.args[:2]
        if len(through) > 1 and op.name not in operations.DIVISIONS:
            one, other = (t.detach() for t in (a, b))
            return self.spread(a, result) * other / 2 + self.spread(b, result) * one / 2
        if op.name in operations.DIVISIONS and (a is not first or op.name.startswith("r") or len(through) > 1):
            raise UnknownOperation("Parts cannot be sent through a division by a state. Use another method.")
        factor = b if a is first else a
        factor = factor.detach() if isinstance(factor, Tensor) else factor
        return parts / factor if op.name in operations.DIVISIONS else parts * factor

    def spread(self, tensor: Tensor, result: Tensor) -> Tensor:
        """The parts of an operand in the shape of the result."""
        parts = self.parts[id(tensor)]
        missing = result.dim() - tensor.dim()
        return parts.reshape(len(parts), *(1,) * missing, *tensor.shape).expand(len(parts), *result.shape)


def compute_secant_slope(result: Tensor, given: Tensor) -> Tensor:
    """f(x) / x; 0 where x is 0."""
    given = given.detach()
    return torch.where(given == 0, 0, result / torch.where(given == 0, 1, given))


def share_bias(parts: Tensor, total: Tensor) -> Tensor:
    """Parts that add up to the total: what is missing, a bias, goes to each as far as it points the same way or the
    opposite."""
    bias = total.detach() - parts.sum(0)
    weight = torch.einsum("k...c,...c->k...", parts, bias).abs()
    share = weight / weight.sum(0).clamp(min=torch.finfo(parts.dtype).tiny)
    return parts + share[..., None] * bias


def find_part_operands(op: Operation, result: Any) -> list[Tensor]:
    """The operands through which parts pass; the others are held at what they were."""
    if op.name in operations.SOFTMAXES or (isinstance(result, Tensor) and trace_of(result).is_statistic):
        return []
    if op.name == operations.FUSED_ATTENTION:
        return [op.argument(2, "value")]
    floating = [t for t in op.given if t.is_floating_point()]
    if op.name in operations.PRODUCTS:
        return [t for t in floating if not trace_of(t).is_attention]
    if op.name in operations.MULTIPLICATIONS and len(floating) == 2:
        return pick_part_factors(floating)
    return floating


def pick_part_factors(factors: list[Tensor]) -> list[Tensor]:
    """Of two factors made entry by entry of the same tensor, the one that is a multiple of it: an activation written
    out."""
    a, b = factors
    moving = [t for t in factors if t.requires_grad and not trace_of(t).is_statistic]
    if len(moving) < 2:
        return moving
    if get_root(a) is get_root(b) and is_straight(a) != is_straight(b):
        return [a if is_straight(a) else b]
    return factors


def find_ancestors(tape: OperationTape, output: Tensor) -> tuple[set[int], dict[int, int]]:
    """What the answer is made of, along the ways of the parts, and where each is used last."""
    wanted = {id(output)}
    last_use: dict[int, int] = {}
    for number in reversed(range(len(tape))):
        op, result = tape[number]
        if any(id(t) in wanted for t in ([result] if isinstance(result, Tensor) else find_tensors([result]))):
            for tensor in find_part_operands(op, result):
                wanted.add(id(tensor))
        for tensor in op.given:
            last_use.setdefault(id(tensor), number)
    return wanted, last_use
