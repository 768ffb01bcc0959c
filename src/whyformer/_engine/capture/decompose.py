r"""Decomposition: the forward repeated with every state as a sum of parts, one per input token.

$$ x_i = \sum_k x_{i \leftarrow k}, \qquad \text{from } x^0_{i \leftarrow k} = [i = k]\,x^0_i \text{ to the logits} $$

The operations of the forward are read from the tape (residual.py) and applied to the parts. Linear operations are
applied as they are; attention weights and the statistics of norms are held constant, and an activation is replaced by
the line through 0 and its own point, $f(x) / x$. So everything is linear and the parts still add up. A bias belongs to
no token; it is split among the parts of each state in proportion to $|b \cdot x_{i \leftarrow k}|$. In a product of two
states (gates) each gets half.

The biases of an attention are shared once, as one vector $b = W_O b_V + b_O$ (attention weights sum to 1). Until then
the parts of values and of attention outputs do not add up to the state: a bias waits. `BiasForm` says where it is
shared:

    paper       after the output projection, among the parts of what attention adds
    released    after the addition to the state, among the parts of the sum; the value bias of the first attention
                stays with its token

There are as many parts as tokens, so this takes that many times the memory of a forward: use it for short sequences.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.capture.residual import TRANSPARENT_OPERATIONS, OperationTape, linearise_norm
from whyformer._engine.targets.function_target import ReadOutput
from whyformer._engine.targets.target import Target
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import read_fused_site
from whyformer._engine.tracing.follow import get_root, is_straight
from whyformer._engine.tracing.operations import Operation, find_tensors
from whyformer._engine.tracing.provenance import axis_of, trace_of
from whyformer.errors import UnknownOperation, UnsupportedModel

BiasForm = Literal["paper", "released"]  # where the biases of an attention are shared
PARTS_FORMS: dict[str, BiasForm] = {"answer_parts": "paper", "released_answer_parts": "released"}  # by site
MOST_TOKENS = 128
PARTWISE_OPERATIONS = TRANSPARENT_OPERATIONS | operations.CONCATENATIONS | operations.POOLS | {"cumsum"}
# Where a bias that waits can be shared.
BIAS_STEPS = operations.ADDITIONS | operations.NORMS | {"linear", "addmm"}


@dataclass(frozen=True)
class FirstState:
    """The state that enters the first block, and the tape of the forward."""

    tape: OperationTape
    state: Tensor
    order: str  # of its axes
    form: BiasForm


def compute_answer_parts(first: FirstState, output: Tensor, targets: Sequence[Target]) -> Tensor:
    """[batch token]: what each token contributes to the explained logit."""
    positions = [target.position for target in targets]  # of a language model
    at = (torch.arange(len(targets)), torch.tensor(positions)) if positions[0] is not None else None
    with torch.no_grad():
        logits = PartsReplay(first, output).compute_output(at)
    logits = logits[..., None] if logits.dim() == 2 else logits  # part batch class
    rows = torch.arange(len(targets), device=logits.device)
    scores = logits[:, rows, [target.index for target in targets]]
    for row, target in enumerate(targets):
        if target.versus is not None:
            scores[:, row] -= logits[:, row, target.versus]
    return scores.T


def compute_score_parts(first: FirstState, read: Sequence[ReadOutput]) -> Tensor:
    """[batch token]: what each token contributes to a sum of slope x output, over all outputs that are read."""
    with torch.no_grad():
        total = [PartsReplay(first, one.tensor).compute_score(one.slope) for one in read]
    return torch.stack(total).sum(0).T


class PartsReplay:
    """Applies the operations of the tape to the parts of the states; those of the first state are its tokens."""

    def __init__(self, first: FirstState, output: Tensor) -> None:
        self.tape, self.output, self.form, state = first.tape, output, first.form, first.state
        length = state.size(0 if first.order in ("turned", "alone") else 1)
        if length > MOST_TOKENS:
            raise UnsupportedModel(
                f"Decomposing every state into {length} parts, one per token, takes too much memory; at most "
                f"{MOST_TOKENS} tokens are supported. Use a shorter text."
            )
        own = torch.eye(length, dtype=state.dtype, device=state.device)
        shape = {"alone": (length, length, 1), "turned": (length, length, 1, 1)}
        own = own.view(shape.get(first.order, (length, 1, length, 1)))
        self.parts = {id(state): state.detach() * own}
        self.wanted, self.last_use = find_ancestors(self.tape, output)
        self.value_maps = find_value_maps(self.tape, skip_first=self.form == "released")
        self.waiting: set[int] = set()  # tensors whose parts lack a bias that is shared later

    def compute_score(self, slope: Tensor) -> Tensor:
        """[part batch]: the parts of the sum of slope x output. An output [batch token class] only where it is read."""
        batch_axis = axis_of(trace_of(self.output).samples) or 0
        if slope.dim() != 3 or batch_axis != 0:
            products = self.compute_output(None) * slope
            return products.transpose(1, 1 + batch_axis).flatten(2).sum(-1)
        rows, positions = slope.abs().sum(-1).nonzero(as_tuple=True)
        parts = (self.compute_output((rows, positions)) * slope[rows, positions]).sum(-1)
        return parts.new_zeros(len(parts), len(slope)).index_add_(1, rows, parts)

    def compute_output(self, at: tuple[Tensor, Tensor] | None) -> Tensor:
        """The parts of the output; of an output [batch token class], at these examples and positions."""
        if at is not None and self.output.dim() == 3 and self.output.size(1) == 1:  # only the last position
            at = at[0], torch.zeros_like(at[1])
        for number, (op, result) in enumerate(self.tape):
            results = [result] if isinstance(result, Tensor) else list(find_tensors([result]))
            is_wanted = any(id(t) in self.wanted for t in results)
            through = [t for t in find_part_operands(op, result) if id(t) in self.parts] if is_wanted else []
            if through:
                if result is self.output and op.name == "linear" and result.dim() == 3 and at is not None:
                    return self.apply_at_positions(op, at)
                self.follow(op, result, results, through)
            for tensor in op.given:
                if self.last_use.get(id(tensor)) == number and tensor is not self.output:
                    self.parts.pop(id(tensor), None)
        if id(self.output) not in self.parts:
            raise UnsupportedModel("The answer could not be decomposed into parts of the tokens. Use another method.")
        logits = self.parts[id(self.output)]
        logits = share_bias(logits, self.output) if id(self.output) in self.waiting else logits
        return logits if at is None else logits[:, *at]

    def apply_at_positions(self, op: Operation, at: tuple[Tensor, Tensor]) -> Tensor:
        """The output layer of a language model, at these examples and positions."""
        given, weight, bias = op.linear_arguments()
        logits = F.linear(self.parts[id(given)][:, *at], weight)
        return share_bias(logits, self.output[at]) if bias is not None or id(given) in self.waiting else logits

    def follow(self, op: Operation, result: Tensor, results: list[Tensor], through: list[Tensor]) -> None:
        """Compute the parts of the results of one operation; `through`: the operands that have parts."""
        waits = any(id(t) in self.waiting for t in through)
        if op.name in PARTWISE_OPERATIONS:
            others = {id(t): torch.zeros_like(t) for t in op.given if t.is_floating_point()}  # they have no parts
            made = self.apply_per_part(op, through, others)
        else:
            parts = self.combine_parts(op, result, through)
            if has_bias(op, through) or (waits and op.name in BIAS_STEPS):
                is_joined = len(through) > 1 or op.name in operations.NORMS
                waits = id(result) in self.value_maps or (self.form == "released" and waits and not is_joined)
                parts = parts if waits else share_bias(parts, result)
            elif self.form == "released" and is_attention_product(op):
                waits = True
            made = [parts]
        for tensor, parts in zip(results, made, strict=True):
            self.parts[id(tensor)] = parts
            if waits:
                self.waiting.add(id(tensor))

    def apply_per_part(self, op: Operation, through: list[Tensor], others: dict[int, Tensor]) -> list[Tensor]:
        """The operation applied to each part in turn; `others` replace the operands without parts."""
        columns = []
        for k in range(len(self.parts[id(through[0])])):
            here = others | {id(t): self.parts[id(t)][k] for t in through}
            made = op.map_arguments(lambda value, here=here: here.get(id(value), value)).run()  # type: ignore[misc]
            columns.append([made] if isinstance(made, Tensor) else list(find_tensors([made])))
        return [torch.stack(column) for column in zip(*columns, strict=True)]

    def combine_parts(self, op: Operation, result: Tensor, through: list[Tensor]) -> Tensor:
        """The operation on the parts, without its bias."""
        name, first = op.name, through[0]
        parts = self.parts[id(first)]
        if not isinstance(result, Tensor):  # a recurrent layer returns its last state as well
            raise UnknownOperation(f"{name} cannot be applied to parts of a state. Use another method.")
        result = result.detach()
        if name == "detach":
            return parts
        if name == "linear":
            return F.linear(parts, op.linear_arguments()[1])
        if name == "addmm" and op.argument(1, "mat1") is first:
            return parts @ op.argument(2, "mat2")
        if name == operations.FUSED_ATTENTION:
            return self.apply_attention(op, result, parts)
        if name in ("layer_norm", "rms_norm"):
            norm = linearise_norm(op, op.argument(0, "input").detach())
            return norm.apply_unscaled(parts) * norm.scale[..., None]
        if name in operations.ACTIVATIONS:
            return parts * compute_secant_slope(result, first.detach())
        if name in operations.ADDITIONS:
            return self.add_parts(op, result)
        if name in operations.MULTIPLICATIONS:
            return self.multiply_parts(op, result, through)
        if name in ("matmul", "bmm", "mm") and len(through) == 1:
            left, right = op.args[:2]
            return torch.matmul(parts, right.detach()) if left is first else torch.matmul(left.detach(), parts)
        if name == "einsum" and len(through) == 1:
            return self.apply_per_part(op, through, {})[0]
        raise UnknownOperation(f"{name} cannot be applied to parts of a state. Use another method.")

    def apply_attention(self, op: Operation, output: Tensor, parts: Tensor) -> Tensor:
        """Fused attention with its weights held constant."""
        site = read_fused_site(op, output, "the model").detach()
        repeats = site.value.size(-3) // parts.size(-3)
        return site.attention() @ (parts.repeat_interleave(repeats, -3) if repeats > 1 else parts)

    def add_parts(self, op: Operation, result: Tensor) -> Tensor:
        alpha = op.kwargs.get("alpha", 1)
        minus = op.name in ("sub", "rsub", "subtract")
        signs = [1, -alpha if minus else alpha]
        signs = [-alpha, 1] if op.name == "rsub" else signs
        total = sum(
            sign * self.broadcast_parts(t, result)
            for sign, t in zip(signs, op.args[:2], strict=False)
            if isinstance(t, Tensor) and id(t) in self.parts
        )
        assert isinstance(total, Tensor)
        return total

    def multiply_parts(self, op: Operation, result: Tensor, through: list[Tensor]) -> Tensor:
        """A product with a constant, or of two states, which get half each."""
        first = through[0]
        parts = self.broadcast_parts(first, result)
        if op.name == "neg":
            return -parts
        a, b = op.args[:2]
        if len(through) > 1 and op.name not in operations.DIVISIONS:
            one, other = (t.detach() for t in (a, b))
            return self.broadcast_parts(a, result) * other / 2 + self.broadcast_parts(b, result) * one / 2
        if op.name in operations.DIVISIONS and (a is not first or op.name.startswith("r") or len(through) > 1):
            raise UnknownOperation("A division by a state cannot be decomposed. Use another method.")
        factor = b if a is first else a
        factor = factor.detach() if isinstance(factor, Tensor) else factor
        return parts / factor if op.name in operations.DIVISIONS else parts * factor

    def broadcast_parts(self, tensor: Tensor, result: Tensor) -> Tensor:
        """The parts of an operand, broadcast to the shape of the result."""
        parts = self.parts[id(tensor)]
        missing = result.dim() - tensor.dim()
        return parts.reshape(len(parts), *(1,) * missing, *tensor.shape).expand(len(parts), *result.shape)


def compute_secant_slope(result: Tensor, given: Tensor) -> Tensor:
    """f(x) / x; 0 where x is 0."""
    return torch.where(given == 0, 0, result / torch.where(given == 0, 1, given))


def share_bias(parts: Tensor, total: Tensor) -> Tensor:
    """Parts that add up to the total: the difference, a bias, is split in proportion to |bias . part|."""
    bias = total.detach() - parts.sum(0)
    weight = torch.einsum("k...c,...c->k...", parts, bias).abs()
    share = weight / weight.sum(0).clamp(min=torch.finfo(parts.dtype).tiny)
    return parts + share[..., None] * bias


def has_bias(op: Operation, through: list[Tensor]) -> bool:
    """The operation adds something that belongs to no part."""
    if op.name == "linear":
        return op.linear_arguments()[2] is not None
    if op.name in operations.ADDITIONS:
        return len(through) == 1
    return op.name == "addmm" or op.name in operations.NORMS


def is_attention_product(op: Operation) -> bool:
    """Attention weights times values."""
    if op.name == operations.FUSED_ATTENTION:
        return True
    return op.name in operations.PRODUCTS and any(trace_of(t).is_attention for t in op.given)


def find_value_maps(tape: OperationTape, *, skip_first: bool) -> set[int]:
    """The tensors that include the bias of a map that computes values, from the map to the end of its bias."""
    sources = {id(t): op for op, result in tape for t in find_tensors([result])}
    values = [find_part_operands(op, result) for op, result in tape if is_attention_product(op)]
    found: set[int] = set()
    for tensor in (operands[0] for operands in values[skip_first:] if len(operands) == 1):
        found.update(id(t) for t in walk_to_map(tensor, sources))
    return found


def walk_to_map(tensor: Tensor, sources: Mapping[int, Operation]) -> Iterator[Tensor]:
    """Backwards through views to the linear map behind a tensor; what is added after the map is its bias."""
    while (op := sources.get(id(tensor))) is not None and len(op.dependent) == 1:
        if op.name in operations.PRODUCTS or op.name == "linear":
            yield tensor
            return
        if op.name in operations.ADDITIONS:
            yield tensor
        elif op.name not in TRANSPARENT_OPERATIONS:
            return
        tensor = op.dependent[0]


def find_part_operands(op: Operation, result: Tensor) -> list[Tensor]:
    """The operands through which parts are propagated; the others are held constant."""
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
    """The factors of a product through which parts are propagated.

    Of two elementwise functions of the same tensor, only the one that is a multiple of it: the product is an activation
    written out.
    """
    a, b = factors
    moving = [t for t in factors if t.requires_grad and not trace_of(t).is_statistic]
    if len(moving) < 2:
        return moving
    if get_root(a) is get_root(b) and is_straight(a) != is_straight(b):
        return [a if is_straight(a) else b]
    return factors


def find_ancestors(tape: OperationTape, output: Tensor) -> tuple[set[int], dict[int, int]]:
    """The tensors the answer is computed from, along the paths of the parts, and the last use of each."""
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
