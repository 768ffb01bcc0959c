"""Models that cut their own graph: `torch.no_grad()` around a frozen backbone, checkpoints, `detach()` on its features.

None of these changes a number of the forward. They only stop gradients and relevance, which would then begin at the
cut and say nothing about the input. If a cut hides attention or the whole input, the model is run again and what cuts
is ignored: first places where gradients are switched off, then also `detach()`. Cuts that leave another path to the
input stay: the model means them (a stabilised softmax, a straight-through estimate).
"""

from enum import IntEnum

from whyformer._plain.private_torch import top_saving_hooks


class Ignored(IntEnum):
    """What is ignored of all that cuts a graph."""

    NOTHING = 0
    SWITCHED_OFF = 1
    DETACHED = 2


CUTTING_OPERATIONS = frozenset(("detach", "data"))
NOTES = {
    Ignored.SWITCHED_OFF: "The model switches gradients off in a part of its forward (torch.no_grad(), a checkpoint). "
    "This explanation passes that part and reaches the input; no number of the forward changes.",
    Ignored.DETACHED: "The model calls detach() on what it computes from the input, so its own gradients begin behind "
    "that. This explanation ignores the call and reaches the input.",
}


def is_in_checkpoint() -> bool:
    """Whether what autograd keeps now would be dropped and computed again (`checkpoint(..., use_reentrant=False)`)."""
    hooks = top_saving_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"
