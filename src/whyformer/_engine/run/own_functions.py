"""Autograd functions of a model's own that compute a known activation, told by their numbers.

A `torch.autograd.Function` hides what it computes: BLOOM writes GELU as one, RecurrentGemma a square root. Its node
keeps the tensor it was given for its backward pass. If a known activation of that tensor gives the same numbers, the
function is that activation and gets its rule.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from whyformer._plain.private_torch import forward_class_of

KNOWN: tuple[Callable[[Tensor], Tensor], ...] = (
    partial(F.gelu, approximate="tanh"), F.gelu, F.silu, F.relu, torch.sigmoid, torch.tanh, torch.sqrt, F.mish,
    F.softplus, torch.exp,
)  # fmt: skip
LEAST = 3  # different numbers, so that two functions are told apart


def is_result_of_own_function(tensor: Tensor) -> bool:
    """Whether a function of the model, or of a library, computed it; not one of ours."""
    node: object = tensor.grad_fn
    return isinstance(node, BackwardCFunction) and not is_ours(forward_class_of(node))


def is_ours(function: type | None) -> bool:
    return function is not None and function.__module__.startswith("whyformer.")


def find_known_function(result: Tensor) -> Callable[[], Tensor] | None:
    """The known activation that gives this result, of the tensor that it was computed from; None if there is none."""
    saved = getattr(result.grad_fn, "saved_tensors", ())
    for given in saved:
        if given is None or not given.requires_grad or given.shape != result.shape or given.unique().numel() < LEAST:
            continue
        if given.grad_fn is result.grad_fn:  # a function that keeps its result: relu of a softmax is that softmax
            continue
        for function in KNOWN:
            if torch.allclose(function(given.detach()), result.detach(), rtol=1e-5, atol=1e-6):
                return partial(function, given)
    return None
