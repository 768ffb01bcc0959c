r"""The residual stream: what the attention of a block adds to it, per head and per token.

$$ y_i = x_i + \sum_j \sum_h A^h_{ij}\, v^h_j W_O^h + b, \qquad z_i = \mathrm{norm}(y_i) $$

Attention sites provide $A$ and $v$. What happens to a site's output is read from the *tape*, the list of all operations
of the forward in their order: views that concatenate the heads, one linear map $W_O$ (with a scale per channel folded
in), the addition to the input of the block. Blocks that normalise after each addition (BERT) have two norms from there
to their end, others (ViT, GPT) none. A norm whose statistics are held constant is linear, so parts of $y_i$ can be sent
through it separately.

Nothing is assumed: the sum above is computed and compared with the state that the model computed. A block of another
build raises on access.

Layer scores: what the head of the model reads from the states of an earlier layer.

$$ s^l = \mathrm{tail}(x^l), \qquad \frac{\partial s^l}{\partial O_l} $$

where $x^l$ leaves block $l$, $O_l$ is the output of its attention and the *tail* is everything after the last block:
the final norm, pooling and head. The operations of the tail are read from the tape (residual.py) and applied again. The
gradient of $s^l$ passes through one block only, so all layers together cost about as much as one backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.layout.blocks import find_attention_blocks
from whyformer._engine.layout.layout import (
    Layout,
    arrange_axes,
    axis_order_of,
    from_canonical_axes,
    refuse_changing_tokens,
)
from whyformer._engine.run.forward import Run
from whyformer._engine.run.graph import compute_gradients, refuse_untracked
from whyformer._engine.run.returned import Returned, find_output, iterate_tensors, map_tensors
from whyformer._engine.targets.target import Reading
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import AttentionSite, find_layer_sites
from whyformer._engine.tracing.operations import Operation, find_tensors
from whyformer._engine.tracing.provenance import trace_of
from whyformer._model import EncodedBatch
from whyformer.errors import UnsupportedModel

OperationTape = Sequence[tuple[Operation, Tensor]]
TRANSPARENT_OPERATIONS = operations.VIEWS | operations.IDENTITIES


@dataclass(frozen=True)
class LinearNorm:
    """A norm with its statistics held constant: a linear map, which can be applied to parts of its input."""

    scale: Tensor  # [batch token], 1 / standard deviation (or 1 / root mean square)
    gain: Tensor | None  # [channel]
    is_centred: bool

    def apply_unscaled(self, vectors: Tensor) -> Tensor:
        """The norm of parts [... channel] of a token's state, without that token's `scale`."""
        vectors = vectors - vectors.mean(dim=-1, keepdim=True) if self.is_centred else vectors
        return vectors if self.gain is None else vectors * self.gain


@dataclass(frozen=True)
class Branch:
    """The path from the attention of a block to the end of the block."""

    value: Tensor  # [batch head key channel]
    weight: Tensor  # [state, channel of the concatenated heads], the product of all linear maps on the path
    residual: Tensor  # [batch token state], the input of the block
    middle: Tensor  # [batch token state], after attention (and its norm)
    update: Tensor  # [batch token state], what the second half adds to `middle`
    norms: tuple[LinearNorm, ...]  # after the two additions, if any

    @property
    def projected(self) -> Tensor:
        """[batch head key state]: what each head adds to a token that attends only to this key."""
        heads = self.weight.unflatten(1, (self.value.size(1), -1))  # state head channel
        return torch.einsum("bhkc,shc->bhks", self.value, heads)


def find_branch(site: AttentionSite, entered: Tensor, left: Tensor, tape: OperationTape) -> Branch:
    """The branch of one block, from its input and output in the model's order of axes."""
    walk = TapeWalker(site, tape)
    weight, mixed, residual = walk.walk_to_addition()
    if residual.shape != entered.shape or not torch.equal(residual, entered):
        raise walk.make_refusal("is not added to the input of the block")
    order = axis_order_of(entered, trace_of(entered))
    in_order = lambda tensor: arrange_axes(tensor.detach(), order)  # noqa: E731
    last, _ = walk.find_source(left)
    norms: tuple[LinearNorm, ...] = ()
    middle, end = mixed, left
    if last.name in operations.NORMS:
        first = walk.find_use(mixed, operations.NORMS)
        if first is None:
            raise walk.make_refusal("is not normalised, but the output of its block is")
        middle, end = first[1], last.argument(0, "input")
        norms = tuple(linearise_norm(op, in_order(op.argument(0, "input"))) for op in (first[0], last))
    source = last.args if last.name in operations.ADDITIONS else walk.find_source(end)[0].args
    if not any(isinstance(t, Tensor) and t.shape == middle.shape and torch.equal(t, middle) for t in source):
        raise walk.make_refusal("is not followed by a second addition to the state")
    after = in_order(middle)
    branch = Branch(site.value, weight, in_order(residual), after, in_order(end) - after, norms)
    walk.check_sum(branch, in_order(mixed))
    return replace(branch, value=branch.value.detach())


class TapeWalker:
    """Follows tensors along the tape."""

    def __init__(self, site: AttentionSite, tape: OperationTape) -> None:
        self.site, self.tape = site, tape

    def make_refusal(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"The output of the attention in {self.site.path} {why}. Methods that decompose blocks support blocks "
            "with one projection, an addition and norms."
        )

    def find_uses(self, tensor: Tensor) -> list[tuple[Operation, Tensor]]:
        return [(op, result) for op, result in self.tape if any(given is tensor for given in op.given)]

    def find_use(self, tensor: Tensor, names: frozenset[str]) -> tuple[Operation, Tensor] | None:
        return next(((op, result) for op, result in self.find_uses(tensor) if op.name in names), None)

    def find_source(self, tensor: Tensor) -> tuple[Operation, Tensor]:
        """The operation that computed a tensor, looking through views."""
        for op, result in reversed(self.tape):
            if result is tensor:
                return self.find_source(op.given[0]) if op.name in TRANSPARENT_OPERATIONS else (op, result)
        raise self.make_refusal("cannot be followed to the end of its block")

    def walk_to_addition(self) -> tuple[Tensor, Tensor, Tensor]:
        """The product of all maps applied to the output; then the sum and what it was added to."""
        current, weight = self.site.output, None
        while True:
            uses = self.find_uses(current)
            if len(uses) != 1:
                raise self.make_refusal("is used in several places" if uses else "is not used")
            op, result = uses[0]
            others = [given for given in op.given if given is not current]
            if op.name in TRANSPARENT_OPERATIONS and isinstance(result, Tensor) and not others:
                current = result
            elif (projection := find_projection(op, current)) is not None and weight is None:
                current, weight = result, projection
            elif op.name in operations.MULTIPLICATIONS and weight is not None and len(others) == 1 and op.name != "neg":
                weight = self.fold_scale(weight, op, others[0], current)
                current = result
            elif op.name in operations.ADDITIONS - {"sub", "rsub", "subtract"} and weight is not None and others:
                if others[0].dim() > 1:
                    return weight.detach(), result, others[0]
                current = result  # a bias
            else:
                raise self.make_refusal(f"goes through {op.name} before it is added to the state")

    def fold_scale(self, weight: Tensor, op: Operation, factor: Tensor, current: Tensor) -> Tensor:
        """The weight with a scale per channel folded in."""
        if factor.numel() not in (1, weight.size(0)) or (factor.dim() and factor.size(-1) != factor.numel()):
            raise self.make_refusal("is multiplied by something other than one number per channel")
        if op.name in operations.DIVISIONS and op.args[0] is not current:
            raise self.make_refusal("is used as a divisor")
        return weight / factor.reshape(-1, 1) if op.name in operations.DIVISIONS else weight * factor.reshape(-1, 1)

    def check_sum(self, branch: Branch, mixed: Tensor) -> None:
        """Compare the sum over heads with what the model added, up to a constant (biases)."""
        heads = branch.weight.unflatten(1, (branch.value.size(1), -1))
        added = torch.einsum("bhqc,shc->bqs", self.site.split_heads(self.site.output.detach()), heads)
        rest = mixed - branch.residual - added
        away = (rest - rest[:1, :1]).abs().amax()
        tolerance = max(1e-3, 16 * torch.finfo(mixed.dtype).eps)
        if bool(away > tolerance * mixed.abs().amax()):
            raise self.make_refusal("is not the heads concatenated in order")


def find_projection(op: Operation, current: Tensor) -> Tensor | None:
    """The matrix [out in] that this operation multiplies the tensor by; None for other operations."""
    if op.name == "linear" and op.linear_arguments()[0] is current:
        return op.linear_arguments()[1]
    if op.name == "addmm" and op.argument(1, "mat1") is current and op.kwargs.get("alpha", 1) == 1:
        return op.argument(2, "mat2").mT
    if op.name in ("matmul", "mm") and op.args[0] is current and op.args[1].dim() == 2:
        return op.args[1].mT
    return None


def linearise_norm(op: Operation, given: Tensor) -> LinearNorm:
    """A layer or RMS norm with its statistics held constant, from its input [batch token channel]."""
    is_centred = op.name == "layer_norm"
    eps = op.argument(4 if is_centred else 3, "eps", default=1e-5)
    if op.name not in ("layer_norm", "rms_norm"):
        raise UnsupportedModel(f"{op.name} cannot be applied to parts of a state. Use another method.")
    eps = torch.finfo(given.dtype).eps if eps is None else eps
    mean_square = given.var(-1, unbiased=False) if is_centred else given.square().mean(-1)
    gain = op.argument(2, "weight")
    return LinearNorm((mean_square + eps).rsqrt(), None if gain is None else gain.detach(), is_centred)


# --- layer scores -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerReading:
    """How the score of a layer is read from its states."""

    pools_mean: bool = False  # every state is replaced by the mean over tokens, so any pooling reads the mean
    normalises: bool = False  # the score is divided by the length of all logits


def compute_layer_gradients(
    run: Run, encoded: EncodedBatch, layout: Layout, read: Reading, reading: LayerReading
) -> list[Tensor]:
    """The gradient of each layer's score by the output of its attention."""
    states, _ = find_attention_blocks(run.mode)
    refuse_changing_tokens(states, layout)
    outputs = [site.output for site in find_layer_sites(run.mode.sites)]
    refuse_untracked({"attention_output": outputs})
    gradients = []
    for layer, attention_output in enumerate(outputs):
        with torch.enable_grad():
            state = states[layer + 1]
            state = average_tokens(state, layout.mask) if reading.pools_mean else state
            returned = repeat_tail(run.mode.tape or [], states[-1], state, run.returned)
            answers = read.read(encoded, returned, torch.arange(encoded.batch))
            score, logits = answers.score, answers.logits
            if reading.normalises:
                logits = logits if logits.size(1) > 1 else find_output(returned).reshape(encoded.batch, -1)
                score = score / logits.norm(dim=-1)
        (gradient,) = compute_gradients(score, [attention_output], retain_graph=True, allow_unused=True)
        gradients.append(torch.zeros_like(attention_output) if gradient is None else gradient)
    return gradients


def average_tokens(state: Tensor, mask: Tensor) -> Tensor:
    """The state with each token replaced by the mean over those that are not padding."""
    order = axis_order_of(state, trace_of(state))
    weights = mask.to(state) / mask.sum(1, keepdim=True)
    mean = (weights[..., None] * arrange_axes(state, order)).sum(1, keepdim=True)
    return from_canonical_axes(mean, order).expand_as(state)


def repeat_tail(tape: OperationTape, old: Tensor, new: Tensor, returned: Returned) -> Returned:
    """What the model returns if the state `old` is replaced by `new`."""
    made = {id(old): new}
    for operation, result in tape:
        if any(id(tensor) in made for tensor in operation.given):
            again = operation.map_arguments(lambda value: made.get(id(value), value)).run()
            for before, after in zip(find_tensors([result]), find_tensors([again]), strict=True):
                made[id(before)] = after
    if not any(id(tensor) in made for tensor in iterate_tensors(returned)):
        raise UnsupportedModel(
            "The output of the model could not be computed again from the states of its last block. Use another method."
        )
    return map_tensors(returned, lambda tensor: made.get(id(tensor), tensor))
