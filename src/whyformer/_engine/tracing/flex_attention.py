"""`torch.nn.attention.flex_attention`, written as operations that can be seen.

The kernel calls two functions of the model for every pair of a query and a key: one changes the score, the other says
whether the key may be attended to. Both are called here once, with indices that broadcast over all pairs, and compared
with what they give for single pairs. Attention that changes no score becomes fused attention with a mask.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.operations import Operation
from whyformer._plain.private_torch import caller_of_operation, without_interception
from whyformer.errors import UnsupportedModel

FLEX_ATTENTION = "flex_attention"
COMPARED = 32  # pairs of a query and a key
Indices = tuple[Tensor, Tensor, Tensor, Tensor]  # of the example, the head, the query, the key


def write_out_flex_attention(operation: Operation) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel returns: the output [batch head query value], and its log-sum-exp and largest scores, base 2."""
    query, key, value, change, blocks, scale, options = operation.args[:7]
    repeats = query.size(1) // key.size(1)
    indices = make_indices(query, key)
    with without_interception():
        allowed = broadcast_function(blocks[-1], (), indices).expand(*query.shape[:3], key.size(2))
        is_empty = ~allowed.any(-1, keepdim=True)  # for these queries the kernel returns zeros
        mask = None if bool(allowed.all()) else allowed | is_empty
    if is_identity(change, query):
        grouped = {"enable_gqa": True} if repeats > 1 else {}
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, **grouped)
    else:
        keys, values = (t.repeat_interleave(repeats, 1) if repeats > 1 else t for t in (key, value))
        scores = change_scores(change, torch.matmul(query, keys.mT) * scale, indices)
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        output = torch.matmul(scores.softmax(-1), values)
    if bool(is_empty.any()):
        output = output.masked_fill(is_empty, 0)
    none = query.new_empty(0)
    if not (options.get("OUTPUT_LOGSUMEXP") or options.get("OUTPUT_MAX")):
        return output, none, none
    with without_interception():  # if the answer depends on it, relevance is refused
        scores = change(torch.matmul(query, key.repeat_interleave(repeats, 1).mT) * scale, *indices)
        scores = scores.masked_fill(~allowed, float("-inf"))
        return output, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def is_asked_by_flex_attention() -> bool:
    """Whether the operation that the mode is called for is one of the kernel's own checks of its arguments."""
    caller = caller_of_operation(2)
    while caller.f_back is not None and caller.f_code.co_name == "__torch_function__":  # another mode around this one
        caller = caller.f_back
    return caller.f_globals.get("__name__") == "torch.nn.attention.flex_attention"


def make_indices(query: Tensor, key: Tensor) -> Indices:
    """The indices of all pairs, in shapes that broadcast to [batch head query key]."""
    sizes = (*query.shape[:3], key.size(2))
    made = (torch.arange(size, device=query.device) for size in sizes)
    return tuple(index.view([-1 if i == axis else 1 for i in range(4)]) for axis, index in enumerate(made))  # type: ignore[return-value]


def is_identity(change: Callable[..., Tensor], query: Tensor) -> bool:
    """Whether a function of scores returns what it is given."""
    with without_interception():
        score, zero = query.new_zeros(()), torch.zeros((), dtype=torch.long, device=query.device)
        return change(score, zero, zero, zero, zero) is score


def change_scores(change: Callable[..., Tensor], scores: Tensor, indices: Indices) -> Tensor:
    """The scores as the model changes them; its operations are seen."""
    with without_interception():
        broadcast_function(change, (scores.detach(),), indices)
    return change(scores, *indices)


def broadcast_function(function: Callable[..., Tensor], given: tuple[Tensor, ...], indices: Indices) -> Tensor:
    """What a function of single pairs gives for all of them at once; refused unless single pairs give the same."""
    sizes = [index.numel() for index in indices]
    try:
        found = function(*given, *indices)
    except Exception as error:
        raise refuse_function(function, f"{type(error).__name__}: {error}") from error
    whole = found.expand(sizes) if found.dim() <= 4 and is_broadcast(found, sizes) else None
    if whole is None:
        raise refuse_function(function, f"the result has the shape {list(found.shape)}, not {sizes}")
    count = math.prod(sizes)
    for number in range(0, count, max(1, count // COMPARED)):
        place: list[Any] = []
        for size in reversed(sizes):
            number, index = divmod(number, size)
            place.insert(0, torch.tensor(index, device=found.device))
        single = function(*(tensor[tuple(place)] for tensor in given), *place)
        if not torch.allclose(single.to(whole.dtype), whole[tuple(place)], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise refuse_function(function, "the results differ")
    return whole


def is_broadcast(found: Tensor, sizes: list[int]) -> bool:
    return all(n in (1, size) for n, size in zip(reversed(found.shape), reversed(sizes), strict=False))


def refuse_function(function: Callable[..., Tensor], reason: str) -> UnsupportedModel:
    name = getattr(function, "__name__", "a function")
    return UnsupportedModel(
        f"The model gives flex_attention {name}, which cannot be called for all pairs of a query and a key at once "
        f"({reason}). Write it with elementwise operations and indices, or call "
        "torch.nn.functional.scaled_dot_product_attention with the mask or the bias as attn_mask."
    )
