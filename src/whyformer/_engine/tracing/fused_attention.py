"""Fused attention, `torch.nn.functional.scaled_dot_product_attention`: its arguments, and how it is run.

The kernel keeps queries, keys, values and one number per query, so its memory is linear in the number of tokens. Its
masks are not: a boolean mask becomes a matrix of numbers in every layer. Here a mask stays as the model made it, and is
turned into numbers for some queries at a time; what the kernel gets is made once for all layers, and has one row if all
queries have the same.

`torch.nn.attention.flex_attention`, written as operations that can be seen.

The kernel calls two functions of the model for every pair of a query and a key: one changes the score, the other says
whether the key may be attended to. Both are called here once, with indices that broadcast over all pairs, and compared
with what they give for single pairs. Attention that changes no score becomes fused attention with a mask.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.tiles import TileSetting
from whyformer._plain.private_torch import caller_of_operation, without_interception
from whyformer.errors import UnsupportedModel

NAMES = ("query", "key", "value")
SHARED_FROM = 2**24  # bytes of a mask in numbers from which it is made once for all layers
GROUPED_TYPES = (torch.float16, torch.bfloat16)  # for others, kernels of a GPU that share keys have whole matrices


@dataclass(frozen=True, eq=False)
class ScoreMask:
    """What is added to the scores, made for some queries at a time.

    given: numbers to add, or True where attention is allowed, as torch takes them.
    """

    given: Tensor | None = None
    is_causal: bool = False

    @property
    def is_empty(self) -> bool:
        return self.given is None and not self.is_causal

    def read(self, rows: slice, query: Tensor, keys: int) -> Tensor | None:
        """The numbers to add for these queries; None if nothing is masked. `query` has all queries."""
        if self.is_empty:
            return None
        if self.given is None:
            first, last, _ = rows.indices(query.size(-2))
            positions = torch.arange(max(keys, last), device=query.device)
            allowed = positions[:keys] <= positions[first:last, None]
        else:
            allowed = take_rows(self.given, rows)
        return to_numbers(allowed, query.dtype) if allowed.dtype == torch.bool else allowed


NO_MASK = ScoreMask()


def take_rows(tensor: Tensor, rows: slice) -> Tensor:
    """These queries of a tensor [... query key] that may be the same for all queries."""
    return tensor if tensor.dim() < 2 or tensor.size(-2) == 1 else tensor[..., rows, :]


def to_numbers(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where attention is allowed, -inf elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


class FusedArguments(NamedTuple):
    """The arguments of a fused call."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: ScoreMask
    scale: float
    is_grouped: bool  # several heads share a key and a value

    @property
    def repeats(self) -> int:
        """How many heads share a key and a value."""
        return self.query.size(-3) // self.key.size(-3) if self.is_grouped else 1

    def repeat_heads(self) -> tuple[Tensor, Tensor]:
        """Keys and values, one for each head."""
        repeats = self.repeats
        key, value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (self.key, self.value))
        return key, value


def read_fused_arguments(operation: Operation) -> FusedArguments:
    query, key, value = (operation.argument(i, name) for i, name in enumerate(NAMES))
    mask, scale = operation.argument(3, "attn_mask"), operation.kwargs.get("scale")
    is_causal = mask is None and bool(operation.argument(5, "is_causal", default=False))
    return FusedArguments(
        query,
        key,
        value,
        ScoreMask(mask, is_causal),
        query.size(-1) ** -0.5 if scale is None else scale,
        bool(operation.kwargs.get("enable_gqa")),
    )


def prepare_fused_call(operation: Operation, tiles: TileSetting) -> Operation:
    """The same call with a mask that is small, or shared by all layers, and keys for which there is a fused kernel."""
    if not tiles.is_on:
        return operation
    given = read_fused_arguments(operation)
    mask = given.mask.given
    changes: dict[str, Argument] = {}
    if mask is not None and mask.dtype == torch.bool and mask.numel() * given.query.element_size() > SHARED_FROM:
        changes["attn_mask"] = share_numbers(mask, given.query.dtype)
    if given.is_grouped and given.repeats > 1 and given.query.is_cuda and given.query.dtype not in GROUPED_TYPES:
        changes["key"], changes["value"] = given.repeat_heads()
        changes["enable_gqa"] = False
    return replace_arguments(operation, changes) if changes else operation


def is_prepared(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a call needs nothing of the above; to find out takes less time than to do it."""
    mask = options.get("attn_mask")
    if len(args) != 3 or (mask is not None and mask.dtype == torch.bool):
        return False
    query, value = args[0], args[2]
    if query.is_cuda:
        return not options.get("enable_gqa") or query.dtype in GROUPED_TYPES
    return bool(query.size(-1) == value.size(-1))  # on a CPU there is no fused kernel for values of another width


def share_numbers(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as numbers, made once: in one row if it is the same for all queries."""
    made = getattr(allowed, "_whyformer_numbers", None)
    if made is None or made.dtype != dtype:
        with without_interception():
            is_same = bool((allowed == allowed[..., :1, :]).all())
            made = to_numbers(allowed[..., :1, :] if is_same else allowed, dtype)
        allowed._whyformer_numbers = made  # type: ignore[attr-defined]
    return made


def replace_arguments(operation: Operation, changes: Mapping[str, Argument]) -> Operation:
    """The call with other arguments, by name."""
    names = (*NAMES, "attn_mask", "dropout_p", "is_causal")
    by_name = dict(zip(names, operation.args, strict=False)) | operation.kwargs | dict(changes)
    first = tuple(by_name.pop(name) for name in NAMES)
    return Operation(operation.name, operation.function, first, by_name)


# --- flex_attention ---------------------------------------------------------------------------------------------------


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
