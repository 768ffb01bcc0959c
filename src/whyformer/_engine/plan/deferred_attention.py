r"""Attention that a model computes in separate operations, run as one fused call: no matrix [query key] is made.

    $S = QK^\top c$,   $S + M$,   $[S, z]$,   $A = \mathrm{softmax}(S)$ without z,   $O = AV$

with a scale c, a mask M and a sink z (gpt-oss: one more logit per query, which no value belongs to). Until O is asked
for, a planned run computes with tensors of the same shapes that have no memory (device "meta"). A sink is one more key
and channel: $q' = (q, z/c)$, $k' = (k, 0)$ and $k'_0 = (0, 1)$, $v'_0 = 0$, so that $c\,q'^\top k'_0 = z$.

A causal mask is the kernel's own. Under any other one, such as a sliding window, some queries at a time attend to the
keys that one of them may see.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer._engine.plan.actions import Arguments, Function, Options, scale_gradients
from whyformer._engine.relevance import calls
from whyformer._engine.relevance.node import Factors
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Operation

TILE = 1024  # queries at a time, under a mask that is not causal
LAST_LEFT_OUT = (Ellipsis, slice(None, -1, None))


# --- found in a recorded run -----------------------------------------------------------------------------------------


class Use(NamedTuple):
    """One operation on something that depends on the input; numbers stand for tensors."""

    operation: Operation
    given: tuple[int, ...]
    made: tuple[int, ...]


def find_deferrable(uses: Sequence[Use]) -> dict[int, str]:
    """The operations that only make attention out of queries, keys and values, by position, and what part each is."""
    users: dict[int, list[int]] = {}
    for position, use in enumerate(uses):
        for number in dict.fromkeys(use.given):
            users.setdefault(number, []).append(position)
    found: dict[int, str] = {}
    for position, use in enumerate(uses):
        is_product = use.operation.name == "matmul" and len(use.given) == 2
        if is_product and position not in found and all(t.dim() == 4 for t in use.operation.given):
            found |= ScoreChain(uses, users).follow(position)
    return found


@dataclass
class ScoreChain:
    """From the product of queries and keys to the product with values."""

    uses: Sequence[Use]
    users: dict[int, list[int]]
    parts: dict[int, str] = field(default_factory=dict)
    peak: int | None = None  # the highest score of each query

    def follow(self, start: int) -> dict[int, str]:
        """The parts of one attention; {} if something else is done with its scores or weights."""
        self.parts[start] = "scores"
        (scores,) = self.uses[start].made or (None,)
        while scores is not None:
            after = [position for position in self.users.get(scores, ()) if position not in self.parts]
            for position in [p for p in after if self.uses[p].operation.name in ("max", "amax")]:
                self.parts[position] = "peak"
                self.peak = next(iter(self.uses[position].made), None)
                after.remove(position)
            if not after or (len(after) > 1 and not self.is_same_tensor(after[0], scores)):
                return {}
            self.parts[after[0]] = part = self.name_part(self.uses[after[0]], scores)
            if part == "output":
                return {position: name for position, name in self.parts.items() if name != "free"}
            if not part:
                return {}
            (scores,) = self.uses[after[0]].made or (None,)
        return {}

    def is_same_tensor(self, position: int, scores: int) -> bool:
        """A cast to the dtype that it has, or dropout outside training."""
        return self.uses[position].made == (scores,)

    def name_part(self, use: Use, scores: int) -> str:
        operation, before = use.operation, set(self.parts.values())
        name, args, is_first = operation.name, operation.args, use.given[:1] == (scores,)
        is_alone = use.given == (scores,)
        if name in FREE_PARTS and is_alone:
            return "free"
        if "weights" in before:
            if name == "getitem" and "sink" in before:
                return "cut" if args[1] == LAST_LEFT_OUT and "cut" not in before else ""
            is_product = name == "matmul" and is_first and len(use.given) == 2
            return "output" if is_product and ("sink" in before) == ("cut" in before) else ""
        if name in SCALES and is_alone and before <= {"scores", "free", "scale"} and isinstance(args[1], int | float):
            return "scale"
        if name == "add" and is_alone and not operation.kwargs and "mask" not in before:
            return "mask"
        if name == "cat" and is_alone and len(args[0]) == 2 and find_axis(operation, 1) == -1:
            return "sink" if isinstance(args[0][0], Tensor) and args[0][0].requires_grad else ""
        if name == "sub" and use.given == (scores, self.peak):
            return "peak"
        is_softmax = name == "softmax" and is_alone and find_axis(operation, 1) in (-1, 3)
        return "weights" if is_softmax else ""


FREE_PARTS = frozenset("to float double half bfloat16 type type_as dropout contiguous".split())
SCALES = frozenset("mul truediv div".split())


def find_axis(operation: Operation, position: int) -> Any:
    return operation.argument(position, "dim", "axis")


# --- in a planned run ------------------------------------------------------------------------------------------------


def leave_out_memory(value: Any) -> Any:
    """A tensor of the same shape without memory."""
    if isinstance(value, Tensor) and not value.is_meta:
        return torch.empty(value.shape, dtype=value.dtype, device="meta", requires_grad=value.requires_grad)
    return value


@dataclass
class DeferredAttention:
    """The attention that is being put together, and the masks of the run."""

    factors: Factors = (1.0, 1.0, 1.0)
    given: list[Tensor] = field(default_factory=list)
    scale: float = 1.0
    mask: Tensor | None = None
    sink: Tensor | None = None
    tiles: dict[tuple[Any, ...], tuple[Tensor, list["Tile"] | None]] = field(default_factory=dict)

    def run(self, part: str, function: Function, args: Arguments, options: Options) -> Any:
        if part == "scores":
            self.given, self.scale, self.mask, self.sink = [args[0], args[1].mT], 1.0, None, None
        elif part == "scale":
            self.scale = self.scale * args[1] if operations.name_of(function) == "mul" else self.scale / args[1]
        elif part == "mask":
            self.mask = next(t for t in args if isinstance(t, Tensor) and not t.is_meta)
        elif part == "sink":
            self.sink = args[0][1]
        elif part == "output":
            return self.attend(args[1])
        operation = Operation("", function, args, options).map_arguments(leave_out_memory)
        return operation.run()

    def attend(self, value: Tensor) -> Tensor:
        query, key, value = scale_gradients((*self.given, value), self.factors)
        keys, channels = key.size(-2), value.size(-1)
        dtype = torch.promote_types(query.dtype, value.dtype)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if self.sink is not None:
            query, key, value = add_sink(query, key, value, self.sink.to(dtype) / self.scale)
        tiles = self.find_tiles(query.size(-2), keys)
        extra = int(self.sink is not None)
        if tiles is None:
            return self.attend_whole(query, key, value, channels)
        outputs = [tile.attend(query, key, value, self.scale, extra)[..., :channels] for tile in tiles]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2)

    def attend_whole(self, query: Tensor, key: Tensor, value: Tensor, channels: int) -> Tensor:
        """Without a mask, or under a causal one; then a first query of zeros is beside the sink, which all may see."""
        is_causal = self.mask is not None
        has_first = is_causal and self.sink is not None
        query = F.pad(query, (0, 0, 1, 0)) if has_first else query
        made = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=self.scale)
        return made[..., int(has_first) :, :channels]

    def find_tiles(self, queries: int, keys: int) -> list["Tile"] | None:
        """The tiles of the mask, found once for all layers; None if there is no mask, or a causal one."""
        if self.mask is None:
            return None
        mask, extra = self.mask, int(self.sink is not None)
        key = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, extra)
        if key not in self.tiles:
            self.tiles[key] = (
                mask,
                None if is_causal_mask(mask, queries, keys) else cut_mask(mask, queries, keys, extra),
            )
        return self.tiles[key][1]


@dataclass(frozen=True)
class Tile:
    """Some queries, the keys that one of them sees, and their part of the mask."""

    rows: slice
    keys: slice
    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, extra: int) -> Tensor:
        """extra: 1 if the first key is a sink, which every query sees."""
        first, last = self.keys.start, self.keys.stop + extra
        if first == 0 or not extra:
            key, value = key[..., first:last, :], value[..., first:last, :]
        else:
            key, value = (torch.cat((t[..., :1, :], t[..., first + 1 : last, :]), -2) for t in (key, value))
        mask = self.mask.to(query.dtype)
        return F.scaled_dot_product_attention(query[..., self.rows, :], key, value, attn_mask=mask, scale=scale)


def add_sink(query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One more key, in a channel of its own in which queries have what makes its score; without a value."""
    width, more = query.size(-1), 8 - query.size(-1) % 8  # kernels want a multiple of 8
    query = torch.cat((query, F.pad(sink.expand(*query.shape[:-1], 1), (0, more - 1))), -1)
    own = torch.zeros(width + more, dtype=key.dtype, device=key.device)
    own[width] = 1
    key = torch.cat((own.expand(*key.shape[:-2], 1, -1), F.pad(key, (0, more))), -2)
    return query, key, F.pad(value, (0, width + more - value.size(-1), 1, 0))


def is_causal_mask(mask: Tensor, queries: int, keys: int) -> bool:
    """Whether each query sees itself and what is before it, and nothing is added there."""
    if mask.shape[-2:] != (queries, keys) or queries != keys or mask.dtype == torch.bool:
        return False
    matrices = mask.flatten(0, -3) if mask.dim() > 2 else mask[None]
    positions = torch.arange(keys, device=mask.device)
    found = torch.ones((), dtype=torch.bool, device=mask.device)
    for rows in positions.split(TILE):
        part, sees = matrices[:, rows[0] : rows[-1] + 1], positions <= rows[:, None]
        found &= torch.where(sees, part == 0, part <= calls.MASK_CEILING).all()
    return bool(found)


def cut_mask(mask: Tensor, queries: int, keys: int, extra: int) -> list[Tile]:
    """The tiles of a mask; each query also sees so many keys before the others."""
    whole = mask.expand(*mask.shape[:-2], queries, keys)
    parts = list(whole.split(TILE, -2))
    seen = torch.stack([(part > calls.MASK_CEILING).flatten(0, -2).any(0) for part in parts]).int()
    firsts, lasts = seen.argmax(1).tolist(), (keys - seen.flip(1).argmax(1)).tolist()
    tiles = []
    for number, (part, first, last) in enumerate(zip(parts, firsts, lasts, strict=True)):
        rows = slice(number * TILE, number * TILE + part.size(-2))
        tiles.append(Tile(rows, slice(first, last), F.pad(part[..., first:last], (extra, 0))))
    return tiles
