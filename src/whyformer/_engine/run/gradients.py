"""Gradients of scores; what torch refuses is refused in our words."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from whyformer._engine.run.foreign_errors import shorten_message
from whyformer.errors import NonFinite, UnsupportedModel

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
