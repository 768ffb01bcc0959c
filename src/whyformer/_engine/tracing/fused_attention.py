"""Fused attention, `torch.nn.functional.scaled_dot_product_attention`: its arguments, and how it is run.

The kernel keeps queries, keys, values and one number per query, so its memory is linear in the number of tokens. Its
masks are not: a boolean mask becomes a matrix of numbers in every layer. Here a mask stays as the model made it, and is
turned into numbers for some queries at a time; what the kernel gets is made once for all layers, and has one row if all
queries have the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.tiles import TileSetting
from whyformer._plain.private_torch import without_interception

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
