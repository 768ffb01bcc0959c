r"""Recurrences (state spaces, linear attention): decays and transition systems are constants of a relevance pass.

A recurrent layer mixes tokens by $h_t = a_t h_{t-1} + b_t x_t$, and its parallel forms compute the decay between two
tokens as the exponential of a cumulative sum,

    $\prod_{s < r \le t} a_r = \exp(c_t - c_s)$,   $c_t = \sum_{r \le t} \log a_r$

or solve a triangular system $A u = v$ for the corrected values u. The decays and A play the part of attention weights:
given them, the layer is linear in the tokens. In a relevance pass they are constants, and the other factor gets all
relevance, as MambaLRP does with the parameters of a state space (Jafari, Montavon, Müller & Eberle, NeurIPS 2024,
arXiv:2406.07592). A secant of the exponential would not do: $c_t - c_t$ is zero, and there is no line from zero to
$\exp(0) = 1$. The recipes do not differ here. Gradients are not affected. Recurrences that run token by token have no
cumulative sum. Where they compute $a_t = \exp(A\,\Delta_t)$ with constants A (Mamba, RecurrentGemma), that is a decay
too; halved at every step like a factor of any product, relevance would fall by $2^{-d}$ over a distance d.

The same holds for an attention sink that scales the output of attention by $\sigma(\log\sum_j \exp q_j - sink)$: the
sum is the denominator of the softmax, and part of its weights.
"""

from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of

SYSTEMS = {"linalg_solve_triangular": 0}  # operation -> which argument is the matrix


def starts_constant(operation: Operation, trace: Trace) -> bool:
    """Whether the result is constant in a relevance pass: the exponential of a cumulative sum or of a rate, or a
    logsumexp that normalises nothing by itself."""
    if operation.name == "logsumexp":
        return not trace.is_statistic
    given = trace_of(operation.given[0])
    return operation.name == "exp" and (given.is_cumulative or given.is_rate)


def detach_constants(operation: Operation) -> Operation:
    """The operation with detached copies of what is constant in a relevance pass."""
    constants = [t for t in operation.given if trace_of(t).is_detached and t.requires_grad]
    if operation.name in SYSTEMS and operation.args[SYSTEMS[operation.name]].requires_grad:
        constants.append(operation.args[SYSTEMS[operation.name]])
    if not constants:
        return operation
    copies = {id(tensor): attach_trace(tensor.detach(), trace_of(tensor)) for tensor in constants}
    return operation.map_arguments(lambda value: copies.get(id(value), value))
