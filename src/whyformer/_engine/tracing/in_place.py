"""Writes in place: the memory stays as it was, and whoever reads it gets what would be there.

A model writes into a tensor by three forms: `h += x` and other functions with an underscore, `inplace=True`, and
`h[index] = x`. Relevance cannot be propagated through a write, and the written memory may belong to several tensors
(views of each other). So nothing is written. For every storage, `InPlaceWrites` notes which write each entry would come
from; a tensor that is read later is put together from the entries it still has and those that were written:

    key = new_empty(...)                     key[..., :4].copy_(a)       key[..., 4:].copy_(b)
    every entry of key: its own              4 of 8 channels: a          the rest: b, so that key is cat(a, b)
"""

from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor

from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Argument, Operation
from whyformer._engine.tracing.provenance import Trace, attach_trace, trace_of
from whyformer._plain.private_torch import without_interception
from whyformer.errors import UnknownOperation


def compute_written(operation: Operation, target: Tensor) -> Tensor | None:
    """What a function with an underscore would leave in `target`, as a new tensor; None if torch has no such function.

    Call it under the mode, so that the operation is seen."""
    name, rest, kwargs = operation.name, operation.args[1:], operation.kwargs
    if name == "copy_":
        return spread_written(operation.argument(1, "src", "other"), target, target)
    if name in ("zero_", "fill_"):
        value = operation.argument(1, "value", default=0)
        return spread_written(value, target, target) if isinstance(value, Tensor) else target * 0 + value
    if "inplace" in kwargs:
        return operation.function(target, *rest, **{key: kwargs[key] for key in kwargs if key != "inplace"})
    plain = operations.IN_PLACE.get(name, name.removesuffix("_"))
    function = getattr(torch, plain, None) or getattr(Tensor, plain, None)
    return None if function is None else function(target, *rest, **kwargs)


def spread_written(value: Argument, target: Tensor, offsets: Tensor) -> Tensor:
    """`value` of `target[index] = value` in the shape of the entries that it is written to, as a new tensor."""
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value)
    while value.dim() > offsets.dim():
        value = value.squeeze(0)
    return value.to(device=target.device, dtype=target.dtype).expand(offsets.shape).clone()


MOST_PARTS = 8  # that a tensor is put together from, where writes can be joined


@dataclass
class Memory:
    """One storage: which write each of its entries comes from (-1: none), and which entry of the written tensor."""

    writer: Tensor
    entry: Tensor
    written: list[Tensor] = field(default_factory=list)  # what each write would leave, one entry per offset
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (offsets, tensor put together from them)
    is_private: bool = True  # only this memory holds what was written
    stale: Tensor | None = None  # entries of a copy that were written to where they were copied from
    alive: list[Tensor] = field(default_factory=list)  # keeps the address in use


class InPlaceWrites:
    """All writes of one run."""

    def __init__(self) -> None:
        self.memories: dict[int, Memory] = {}  # address of a storage -> its memory
        self.part_of: dict[int, tuple[Tensor, int]] = {}  # address of what was written -> where to, number of the write
        self.is_reading = False  # entries are being put together: tensors are what they are

    def __bool__(self) -> bool:
        return bool(self.memories)

    def find_memory(self, tensor: Tensor) -> Memory | None:
        if not self.memories or self.is_reading:
            return None
        with without_interception():  # also called from hooks, where the mode is on
            return self.memories.get(tensor.untyped_storage().data_ptr())

    def covers(self, tensor: Argument) -> TypeGuard[Tensor]:
        """Whether anything was written into the storage of this tensor."""
        return isinstance(tensor, Tensor) and self.find_memory(tensor) is not None

    def merge_writes(self, tensor: Tensor) -> None:
        """Join what a loop has written so far (`states[:, i] = state`), so that reading does not take ever more parts.

        Only if nobody else holds a part: then it would have to stay a tensor of its own. Call it under the mode."""
        memory = self.find_memory(tensor)
        if memory is None or len(memory.written) < MOST_PARTS or not memory.is_private:
            return
        with without_interception():
            offsets = (memory.writer >= 0).nonzero().flatten()
            numbers, entries = memory.writer[offsets], memory.entry[offsets]
            used = numbers.unique().tolist()
            picks = [(numbers == number).nonzero().flatten() for number in used]
        sources = [memory.written[number] for number in used]
        memory.written = [self.put_together(offsets, sources, [(picked, entries[picked]) for picked in picks])]
        memory.writer[offsets], memory.entry[offsets] = 0, torch.arange(len(offsets), device=offsets.device)

    def note(self, tensor: Tensor, offsets: Tensor, written: Tensor, *, is_private: bool = False) -> None:
        """`written` goes to these offsets (from `locate`) of the memory of `tensor`. is_private: nobody else has it."""
        memory = self.make_memory(tensor)
        memory.is_private &= is_private
        flat = offsets.flatten()
        if memory.written:  # views of what was written before keep the old numbers
            numbers, entries = memory.writer[flat], memory.entry[flat]
            for number in numbers[numbers >= 0].unique().tolist():
                self.mark_stale(memory.written[number], entries[numbers == number])
        self.outdate_copies(tensor, flat)
        memory.writer[flat] = len(memory.written)
        memory.entry[flat] = torch.arange(len(flat), device=flat.device)
        memory.written.append(written)
        memory.alive.append(tensor)
        self.part_of[written.untyped_storage().data_ptr()] = (tensor, len(memory.written) - 1)

    def outdate_copies(self, tensor: Tensor, offsets: Tensor) -> None:
        """Copies of these offsets are outdated, and so are copies of the memory that this one is part of."""
        memory = self.make_memory(tensor)
        if memory.copies:
            is_written = torch.zeros_like(memory.writer, dtype=torch.bool)
            is_written[offsets] = True
        for copied_from, copy in memory.copies:
            self.mark_stale(copy, is_written[copied_from].nonzero().flatten())
        memory.copies = []
        whole, number = self.part_of.get(tensor.untyped_storage().data_ptr(), (None, 0))
        if whole is not None:
            self.outdate_copies(whole, (self.make_memory(whole).writer == number).nonzero().flatten())

    def make_memory(self, tensor: Tensor) -> Memory:
        address = tensor.untyped_storage().data_ptr()
        if address not in self.memories:
            writer = torch.full((count_entries(tensor),), -1, device=tensor.device)
            self.memories[address] = Memory(writer, torch.zeros_like(writer))
        return self.memories[address]

    def mark_stale(self, tensor: Tensor, entries: Tensor) -> None:
        memory = self.make_memory(tensor)
        memory.alive.append(tensor)
        if memory.stale is None:
            memory.stale = torch.zeros_like(memory.writer, dtype=torch.bool)
        memory.stale[locate(tensor).flatten()[entries]] = True

    def follow_moves(self, tensor: Tensor, path: str) -> Tensor:
        """The tensor that replaces this one since all of it was written to."""
        while (memory := self.find_memory(tensor)) is not None:
            offsets = locate(tensor) if count_entries(tensor) == memory.writer.numel() else None
            if offsets is None or (memory.stale is not None and bool(memory.stale[offsets].any())):
                raise UnknownOperation(
                    f"{path} uses a view again after the tensor that it shows was changed in place. "
                    "Write the change as an assignment (x = x + y)."
                )
            numbers, entries = memory.writer[offsets].flatten(), memory.entry[offsets].flatten()
            first = int(numbers[0]) if len(numbers) else -1
            if first < 0 or not bool((numbers == first).all()):
                return tensor
            written = memory.written[first]
            if written.shape != tensor.shape or not torch.equal(entries, torch.arange(len(entries)).to(entries)):
                return tensor
            tensor = written
        return tensor

    def read(self, tensor: Tensor, path: str) -> Tensor:
        """What the model would find in this tensor. Call it under the mode, so that the parts keep their traces."""
        with without_interception():
            tensor = self.follow_moves(tensor, path)
            memory = self.find_memory(tensor)
            if memory is None:
                return tensor
            offsets = locate(tensor).flatten()
            numbers, entries = memory.writer[offsets], memory.entry[offsets]
            if not bool((numbers >= 0).any()):
                return tensor
            for copied_from, copy in memory.copies:
                if copy.shape == tensor.shape and torch.equal(copied_from, offsets):
                    return copy
            picks = [(number, (numbers == number).nonzero().flatten()) for number in numbers.unique().tolist()]
        sources = [tensor if number < 0 else self.read_written(memory.written[number]) for number, _ in picks]
        entries_of = [(picked, entries[picked] if number >= 0 else picked) for number, picked in picks]
        copy = self.put_together(tensor, sources, entries_of)
        memory.copies.append((offsets, copy))
        return copy

    def put_together(self, like: Tensor, sources: list[Tensor], picks: list[tuple[Tensor, Tensor]]) -> Tensor:
        """A tensor of the shape of `like` with entries of several tensors: (where they go, which they are) for each."""
        with without_interception():
            order = torch.cat([offsets for offsets, _ in picks]).argsort()
        self.is_reading = True
        try:
            parts = [source.reshape(-1)[entries] for source, (_, entries) in zip(sources, picks, strict=True)]
            complete_samples(like.shape, [offsets for offsets, _ in picks], parts)
            return torch.cat(parts)[order].view(like.shape)
        finally:
            self.is_reading = False

    def read_written(self, written: Tensor) -> Tensor:
        """A written tensor as it is now, for the entries that no later write replaced."""
        memory = self.find_memory(written)
        if memory is None or not memory.written:
            return written
        stale, memory.stale = memory.stale, None
        try:
            return self.read(written, "")
        finally:
            memory.stale = stale


def count_entries(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def locate(tensor: Tensor) -> Tensor:
    """Where in its storage each entry of the tensor is."""
    numbers = torch.arange(count_entries(tensor), device=tensor.device)
    return numbers.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def complete_samples(shape: torch.Size, offsets: list[Tensor], parts: list[Tensor]) -> None:
    """Give parts without examples (entries of an empty or zero tensor) those of the other parts, if one axis decides
    which example an entry belongs to."""
    with without_interception():
        unknown = [part for part in parts if trace_of(part).samples is None]
        if not unknown or len(unknown) == len(parts):
            return
        label = torch.full((shape.numel(),), -1, dtype=torch.int32, device=parts[0].device)
        for picked, part in zip(offsets, parts, strict=True):
            if (samples := trace_of(part).samples) is not None:
                label[picked] = samples.expand(part.shape)
        completed = complete_label(label.view(shape))
        if completed is None:
            return
        for picked, part in zip(offsets, parts, strict=True):
            if trace_of(part).samples is None:
                attach_trace(part, Trace(samples=completed.reshape(-1)[picked]))


def complete_label(label: Tensor) -> Tensor | None:
    """A label in which -1 is unknown, filled in along the one axis that decides it; None if there is no such axis."""
    for axis in range(label.dim()):
        rows = label.movedim(axis, 0).flatten(1)
        high = rows.amax(1, keepdim=True)
        if bool((high >= 0).all()) and bool(((rows == high) | (rows < 0)).all()):
            return high.view([-1 if a == axis else 1 for a in range(label.dim())]).expand(label.shape)
    return None
