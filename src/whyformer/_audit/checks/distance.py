r"""Distances between distributions, along the last axis. Natural logarithm, $0 \log 0 = 0$.

$$ H(p) = -\sum_j p_j \log p_j, \qquad KL(p, q) = \sum_j p_j \log \frac{p_j}{q_j}, \qquad
JSD(p, q) = H\!\left(\tfrac{p+q}{2}\right) - \tfrac{H(p) + H(q)}{2} \le \log 2, \qquad
TVD(p, q) = \tfrac12 \sum_j |p_j - q_j| $$

Lin, Divergence measures based on the Shannon entropy, IEEE Trans. Inf. Theory 1991, as Jain & Wallace (2019) use it.
"""

import math

import torch
from torch import Tensor

LARGEST_JSD = math.log(2)


def multiply_by_log(p: Tensor, q: Tensor) -> Tensor:
    """p log q, and 0 where p is 0; the gradient is finite there too."""
    return p * q.clamp(min=torch.finfo(q.dtype).tiny).log()


def entropy(p: Tensor) -> Tensor:
    return -multiply_by_log(p, p).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Infinite where p has weight and q has none."""
    missing = ((p > 0) & (q <= 0)).any(-1)
    return (multiply_by_log(p, p) - multiply_by_log(p, q)).sum(-1).masked_fill(missing, torch.inf)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """From 0 (equal) to log 2 (disjoint)."""
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return divergence.clamp(min=0) if not divergence.requires_grad else divergence


def tvd(p: Tensor, q: Tensor) -> Tensor:
    """From 0 to 1; with two classes, the change in either probability."""
    return (p - q).abs().sum(-1) / 2


def attainable_jsd(p: Tensor, allowed: Tensor) -> Tensor:
    r"""The largest JSD from p of any distribution over the allowed entries: $\max_j JSD(1_j, p)$.

    JSD is convex in each argument, so its maximum is at a corner of the simplex, the one with the smallest $p_j$.
    """
    smallest = p.masked_fill(~allowed, torch.inf).argmin(-1, keepdim=True)
    corner = torch.zeros_like(p).scatter_(-1, smallest, 1.0)
    return jsd(corner, p)
