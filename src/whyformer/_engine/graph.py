"""A last look at the graph: nothing may pass relevance on as a plain gradient.

An operation that nobody saw (inside a composite, a compiled region, somebody's own autograd function) would hand
relevance on as if it were a gradient. So before relevance is sent back, every node between the score and the input
must be ours or a view.
"""

from typing import Any

from torch import Tensor

from whyformer._engine.relevance.node import RuleNode
from whyformer.errors import UnknownOperation, UnsupportedModel

PASS_THROUGH_NODES = frozenset(
    "View UnsafeView Reshape ReshapeAlias Transpose T Permute Squeeze Unsqueeze Expand Slice Select Index IndexSelect "
    "Cat Stack Split SplitWithSizes Unbind Clone Alias AsStrided Narrow Repeat RepeatInterleave Roll Flip ToCopy "
    "ConstantPadNd Gather Where MaskedFill Amax Amin Max Min Topk Sort AccumulateGrad Sub Unfold Diagonal NanToNum "
    "Triu Tril Movedim Chunk".split()
)


RULE_NODE: Any = RuleNode._backward_cls


def refuse_unknown_nodes(score: Tensor, leaf: Tensor | None = None) -> None:
    """Raise if a node on the way of relevance is neither ours nor a view, or ends anywhere but in the leaf."""
    seen: set[Any] = set()
    waiting: list[Any] = [score.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name().rpartition("::")[2]
        if isinstance(node, RULE_NODE):
            waiting.extend(following for following, _ in node.next_functions[1:])  # the first is the true operation
            continue
        if name == "AccumulateGrad" and leaf is not None and node.variable is not leaf:
            raise UnsupportedModel(
                f"A weight of shape {list(node.variable.shape)} that belongs to no module asks for a gradient and "
                "would take relevance. Make it a parameter of its module, or call requires_grad_(False) on it."
            )
        kind = name.rstrip("0123456789").removesuffix("Backward")
        if kind not in PASS_THROUGH_NODES:
            raise UnknownOperation(
                f"{name} lies between the answer and the input and has no relevance rule: an operation that could not "
                "be seen. Use a method without relevance."
            )
        waiting.extend(following for following, _ in node.next_functions)
