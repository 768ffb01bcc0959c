"""Weights that are there only while their layer runs: offloaded ones, and those restored from 4- or 8-bit codes.

A graph would keep each of them until the backward pass, so that all were there at the end of the forward pass. Instead
it keeps how to get them, and the backward pass loads or restores one at a time.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from whyformer._engine.run.quantised import RestoredLinear
from whyformer._model import OffloadedWeight, list_modules, list_offloaded
from whyformer._plain.private_torch import without_interception

Load = Callable[[], Tensor]
View = tuple[torch.Size, tuple[int, ...], int]  # size, stride and offset


def reload_weights(shadow: nn.Module) -> AbstractContextManager[None]:
    """The graph of a forward pass inside keeps no such weight: the backward pass gets each one again."""
    parts = list_modules(shadow)
    transient: list[OffloadedWeight | RestoredLinear] = [*list_offloaded(parts)]
    transient += [part for part in parts if isinstance(part, RestoredLinear)]
    if not transient:
        return nullcontext()

    def pack(tensor: Tensor) -> Tensor | Load:
        """A tensor as autograd keeps it; of a transient weight, what gets it again and takes the same view of it.

        That must not hold the shadow: its hooks hold the graph, and Python does not collect a cycle through autograd.
        """
        with without_interception():
            storage = tensor.untyped_storage().data_ptr()
            for one in transient:
                if (weight := one.present) is not None and weight.untyped_storage().data_ptr() == storage:
                    view = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
                    return partial(load_view, one.load, weight.device, weight.dtype, view)
            return tensor.detach()  # the result of a node would hold the node

    def unpack(kept: Tensor | Load) -> Tensor:
        return kept if isinstance(kept, Tensor) else kept()

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def load_view(load: Load, device: torch.device, dtype: torch.dtype, view: View) -> Tensor:
    return load().to(device, dtype).as_strided(*view)
