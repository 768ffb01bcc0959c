"""Nested values with a place for each of their tensors: how what a program returns becomes a capture again.

small = put_positions(value, tensors)        appends the tensors; `small` has their places
fill = make_filler(small)
fill(other_tensors)                       the same value with these tensors
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from whyformer._engine.capture.capture import LazyLayers, RoundingEstimate
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.reruns.steps import Unrecordable
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import EMPTY_TRACE, Trace

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class ResultIndex:
    """Where a tensor is among what a program returns."""

    number: int


def put_positions(value: Any, tensors: list[Tensor]) -> Any:
    """The value with a place for every tensor; they are appended to `tensors`."""

    def put(tensor: Tensor) -> ResultIndex:
        tensors.append(tensor)
        return ResultIndex(len(tensors) - 1)

    return map_structure(value, Tensor, put)


def make_filler(value: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function from tensors to the value with these in their places."""
    if isinstance(value, ResultIndex):
        return itemgetter(value.number)
    if not list_entries(value, ResultIndex):
        return lambda _: value
    if isinstance(value, LazyLayers):
        makers = [make_filler(make) for make in value._makers]
        return lambda tensors: LazyLayers([fill(tensors) for fill in makers])
    if isinstance(value, partial):
        function, arguments = value.func, [make_filler(one) for one in value.args]
        return lambda tensors: partial(function, *[fill(tensors) for fill in arguments])
    if type(value) in (list, tuple):
        kind, items = type(value), [make_filler(item) for item in value]
        return lambda tensors: kind(fill(tensors) for fill in items)
    if type(value) is dict:
        entries = {key: make_filler(item) for key, item in value.items()}
        return lambda tensors: {key: fill(tensors) for key, fill in entries.items()}
    own, made_of = type(value), dict(vars(value))
    changing = {name: make_filler(part) for name, part in made_of.items() if list_entries(part, ResultIndex)}

    def fill_fields(tensors: Sequence[Tensor]) -> Any:
        made = object.__new__(own)
        made.__dict__.update(made_of, **{name: fill(tensors) for name, fill in changing.items()})
        return made

    return fill_fields


def map_structure(value: Any, kind: type, change: Callable[..., Any]) -> Any:
    """A copy of what a capture consists of with every entry of this kind changed; refuses what it does not know."""
    again = partial(map_structure, kind=kind, change=change)
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, LazyLayers):
        return LazyLayers([again(make) for make in value._makers])
    if isinstance(value, partial):
        return partial(value.func, *map(again, value.args), **again(value.keywords))
    if isinstance(value, AttentionSite):  # what computes with it needs no labels
        value = replace(value, origin=None, keys=EMPTY_TRACE, rows=EMPTY_TRACE, enclosing=())
    if isinstance(value, AttentionSite | Trace | RoundingEstimate):
        own = {one.name: again(getattr(value, one.name)) for one in fields(value)}
        return type(value)(**own)
    if type(value) in (list, tuple):
        return type(value)(again(item) for item in value)
    if type(value) is dict:
        return {key: again(item) for key, item in value.items()}
    if isinstance(value, Tensor | ResultIndex) or value is None or isinstance(value, str | int | float | Recipe):
        return value
    raise Unrecordable(f"a capture with {type(value).__name__} cannot be made from a program")


def list_entries(value: Any, kind: type[Entry]) -> list[Entry]:
    found: list[Entry] = []
    map_structure(value, kind, found.append)
    return found


# --- one transfer for many tensors -----------------------------------------------------------------------------------


LARGEST_PACKED = 2**16  # bytes: a larger tensor is worth a transfer of its own


@dataclass(frozen=True)
class Packing:
    """Several small tensors as one row of bytes, since each transfer from a GPU waits for it; large ones as they are.

    The widest types come first, so that every tensor begins at a multiple of the size of its entries.
    """

    forms: tuple[tuple[torch.Size, torch.dtype], ...]

    @property
    def order(self) -> list[int]:
        small = [i for i, (shape, dtype) in enumerate(self.forms) if shape.numel() * dtype.itemsize <= LARGEST_PACKED]
        return sorted(small, key=lambda i: -self.forms[i][1].itemsize)

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        order = self.order
        # A copy, as `contiguous` leaves a single entry with stride 0, which cannot be viewed as bytes
        flat = [tensors[i].detach().reshape(-1).clone(memory_format=torch.contiguous_format) for i in order]
        rows = [row.view(torch.uint8) for row in flat]
        return [torch.cat(rows), *(tensor for i, tensor in enumerate(tensors) if i not in order)]

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """The tensors on the CPU, with memory of their own."""
        row, *large = (tensor.cpu() for tensor in packed)
        found: dict[int, Tensor] = {}
        start = 0
        for i in self.order:
            shape, dtype = self.forms[i]
            size = shape.numel() * dtype.itemsize
            found[i] = row[start : start + size].view(dtype).view(shape).clone()
            start += size
        others = iter(large)
        return [found[i] if i in found else next(others) for i in range(len(self.forms))]
