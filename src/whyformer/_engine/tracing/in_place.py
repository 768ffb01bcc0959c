"""Writes in place: which operations write into an operand, and which memory was written to."""

import torch
from torch import Tensor

from whyformer._engine.tracing import operations
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import trace_of


def is_in_place_write(operation: Operation) -> bool:
    name = operation.name
    is_marked = name.endswith("_") and name not in operations.HARMLESS
    return name == "setitem" or bool(operation.kwargs.get("inplace")) or is_marked


def is_in_place_activation(operation: Operation) -> bool:
    is_in_place = operation.name in operations.ACTIVATIONS and bool(operation.kwargs.get("inplace"))
    return is_in_place and bool(operation.carrying) and trace_of(operation.args[0]).samples is not None


class InPlaceWrites:
    """The memory entries that the model would have written to; the mode runs these operations out of place."""

    def __init__(self) -> None:
        self.entries: dict[int, Tensor] = {}  # address -> [entry] bool; `replaced_tensors` keep the memory alive

    def note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        marks = self.entries.setdefault(storage.data_ptr(), torch.zeros(size, dtype=torch.bool, device=tensor.device))
        view_marks_as(tensor, marks).fill_(True)

    def __contains__(self, tensor: Tensor) -> bool:
        if not self.entries:
            return False
        with torch._C.DisableTorchFunction():  # also called from hooks, where the mode is on
            marks = self.entries.get(tensor.untyped_storage().data_ptr())
            return marks is not None and bool(view_marks_as(tensor, marks).any())


def view_marks_as(tensor: Tensor, marks: Tensor) -> Tensor:
    return marks.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
