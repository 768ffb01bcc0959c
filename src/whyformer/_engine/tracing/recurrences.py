r"""Recurrences (state spaces, linear attention): decays and transition systems are held constant.

A recurrent layer mixes tokens by $h_t = a_t h_{t-1} + b_t x_t$, and its parallel forms compute the decay between two
tokens as the exponential of a cumulative sum,

    $\prod_{s < r \le t} a_r = \exp(c_t - c_s)$,   $c_t = \sum_{r \le t} \log a_r$

or solve a triangular system $A u = v$ for the corrected values u. The decays and A play the part of attention weights:
given them, the layer is linear in the tokens. They are held constant, and the values get all relevance, as MambaLRP
does with the parameters of a state space (Jafari, Montavon, Müller & Eberle, NeurIPS 2024, arXiv:2406.07592). A secant
of the exponential would not do: $c_t - c_t$ is zero, and so is the line through it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import trace_of


def hold_decay(operation: Operation) -> Tensor | None:
    """The exponential of a cumulative sum as a constant; None for any other exponential."""
    x = operation.argument(0, "input", "self")
    return torch.exp(x.detach()) if trace_of(x).is_cumulative else None


def hold_system(operation: Operation) -> Tensor | None:
    """`solve_triangular` with a constant matrix: linear in the right-hand side."""
    if not operation.args[0].requires_grad:
        return None
    return operation.function(operation.args[0].detach(), *operation.args[1:], **operation.kwargs)


RECURRENT_OPERATIONS: dict[str, Callable[[Operation], Tensor | None]] = {
    "exp": hold_decay,
    "linalg_solve_triangular": hold_system,
}
