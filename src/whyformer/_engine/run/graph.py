"""The autograd graph of a run: gradients of scores, and checks that nothing in it was missed.

Gradients of scores; what torch refuses is refused in our words.

Checks of the autograd graph: no node may treat relevance as a plain gradient, and none may lack a derivative.

An operation that interception did not see (inside a composite, a compiled region, a custom autograd function) would
propagate relevance as if it were a gradient. So every node between the score and the input must be a rule node or a
view.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from whyformer._engine.relevance.node import RuleNode
from whyformer._engine.run.foreign_errors import shorten_message
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._plain.private_torch import backward_class_of
from whyformer.errors import NonFinite, UnknownOperation, UnsupportedModel

NO_GRADIENT = (
    "The answer has no gradient with respect to the input, which this method needs: the model calls detach() on its "
    "states, or computes them under torch.no_grad(). Remove that from forward()."
)
TrackedTensors = Mapping[str, list[Tensor]]  # site -> one tensor per layer


def compute_gradients(
    score: Tensor, at: Sequence[Tensor], *, retain_graph: bool = False, allow_unused: bool = False
) -> tuple[Tensor, ...]:
    """The gradient of the sum of the scores at each tensor; what torch refuses is refused in our words."""
    if not score.requires_grad:
        raise UnsupportedModel(NO_GRADIENT)
    try:
        return torch.autograd.grad(score.sum(), at, retain_graph=retain_graph, allow_unused=allow_unused)
    except AssertionError as error:  # reversible layers (Reformer) check that they are being trained
        raise UnsupportedModel(
            f"The model's own backward pass does not run: {shorten_message(error)} Use a method without gradients, "
            "such as leave_one_out."
        ) from error
    except RuntimeError as error:
        if "returned nan values" in str(error):  # found by torch.autograd.set_detect_anomaly
            raise NonFinite(f"A gradient is not finite. Anomaly detection of torch says: {error}") from None
        if "use_deterministic_algorithms" in str(error):
            raise UnsupportedModel(
                f"The model cannot be explained while torch.use_deterministic_algorithms is on: {error}",
                code="E_DEVICE",
            ) from None
        raise


def refuse_untracked(tracked: TrackedTensors) -> None:
    for name, group in tracked.items():
        for layer, tensor in enumerate(group):
            if not tensor.requires_grad:
                raise UnsupportedModel(
                    f"{name} {layer} does not depend on the explained input, or was computed without a gradient (a "
                    "decoder with its own input, gradient checkpointing). Methods that need its gradient do not work "
                    "with this model."
                )


# --- checks of the graph ----------------------------------------------------------------------------------------------


PASS_THROUGH_NODES = frozenset(
    "View UnsafeView Reshape ReshapeAlias Transpose T Permute Squeeze Unsqueeze Expand Slice Select Index IndexSelect "
    "Cat Stack Split SplitWithSizes Unbind Clone Alias AsStrided Narrow Repeat RepeatInterleave Roll Flip ToCopy "
    "ConstantPadNd Gather Where MaskedFill Amax Amin Max Min Topk Sort AccumulateGrad Sub Unfold Diagonal NanToNum "
    "Triu Tril Movedim Chunk Maximum Minimum Scatter MaskedScatter IndexPut IndexCopy IndexFill SliceScatter "
    "SelectScatter Im2Col MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D".split()
)

DIFFERENTIABLE = (
    operations.PRODUCTS | operations.CONVOLUTIONS | operations.NORMS | {"linear", operations.FUSED_ATTENTION}
)

OWN_NAMESPACES = ("aten", "prims", "prim", "quantized")

RULE_NODE = backward_class_of(RuleNode)
WITHOUT_RULE = "whyformer_without_rule"


def mark_without_rule(operation: Operation, results: Sequence[Tensor], path: str) -> None:
    """Relevance cannot pass this operation. That is refused only if the answer depends on it, and not only a loss."""
    before = (metadata_of(given.grad_fn).get(WITHOUT_RULE) for given in operation.dependent)
    reason = next(filter(None, before), f"No relevance rule for {operation.name}, called in {path}.")
    for result in results:
        metadata_of(result.grad_fn)[WITHOUT_RULE] = reason


def metadata_of(node: Node | None) -> dict[str, str]:
    """What is noted about a node; a new dictionary for a leaf."""
    return {} if node is None else node.metadata  # type: ignore[return-value]  # a property


def refuse_unknown_nodes(score: Tensor, leaves: Sequence[Tensor] = ()) -> None:
    """Raise if a node that relevance passes is neither a rule node nor a view, or if a path ends outside the leaves."""
    seen: set[Node] = set()
    waiting: list[Node | None] = [score.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (reason := metadata_of(node).get(WITHOUT_RULE)) is not None:
            raise UnknownOperation(f"{reason} Use a method without relevance.")
        name = node.name().rpartition("::")[2]
        if isinstance(node, RULE_NODE):
            waiting.extend(following for following, _ in node.next_functions[1:])  # the first is the operation itself
            continue
        weight = getattr(node, "variable", None) if name == "AccumulateGrad" and leaves else None
        if weight is not None and not any(weight is leaf for leaf in leaves):
            raise UnsupportedModel(
                f"A weight of shape {list(weight.shape)} that belongs to no module requires a gradient and "
                "would absorb relevance. Make it a parameter of its module, or call requires_grad_(False) on it."
            )
        kind = name.rstrip("0123456789").removesuffix("Backward")
        if issubclass(type(node), BackwardCFunction):
            raise UnknownOperation(
                f"The model calls {kind}, a torch.autograd.Function of its own, which has no relevance rule. Write it "
                "with operations of torch, or use a method without relevance."
            )
        if kind not in PASS_THROUGH_NODES:
            raise UnknownOperation(
                f"{name} is between the answer and the input and has no relevance rule: interception did not see this "
                "operation. Use a method without relevance."
            )
        waiting.extend(following for following, _ in node.next_functions)


def refuse_missing_gradient(operation: Operation, result: Argument, path: str) -> None:
    """Raise if an operation of the input has no derivative: its gradient would be zero without a word."""
    if not isinstance(result, Tensor):
        return
    node = result.grad_fn
    is_cut = node is None and result.is_floating_point() and torch.is_grad_enabled() and bool(operation.dependent)
    is_cut = is_cut and (operation.name in DIFFERENTIABLE or is_foreign(operation))
    is_missing = type(node).__name__ == "CppFunction" and node.name().endswith("NotImplemented")  # type: ignore[union-attr]
    if is_cut or is_missing:
        raise UnsupportedModel(
            f"{path} calls {operation.name} on quantised weights or in a kernel of its own, which has no gradient. "
            "Methods that need gradients or relevance do not work. Load the model without quantisation."
        )


def is_foreign(operation: Operation) -> bool:
    """Whether a library other than torch has registered this operator."""
    home = getattr(operation.function, "__module__", None) or ""
    return home.startswith("torch._ops.") and home.split(".")[2] not in OWN_NAMESPACES
