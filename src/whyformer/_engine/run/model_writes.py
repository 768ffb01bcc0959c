"""Writes into the tensors of a model, by its own forward or by another thread.

Writes of a forward into tensors that belong to the model: a cache kept in a buffer, a running statistic.

A shadow shares its tensors with the model, so such a write would change the model. It is found before it happens; the
run starts again on a shadow with copies of these tensors, and so does every later run of the model.

Weights that another thread changes while the model is explained: seen in torch's version counters, and refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from whyformer._engine.run.model_memory import RunAgain, learnt
from whyformer._engine.tracing.operations import Operation
from whyformer._model import count_writes
from whyformer._plain.private_torch import buffers_of, without_interception
from whyformer.errors import ModelError


class WriteGuard:
    """Stops a forward that would write into a tensor of `module`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @cached_property
    def storages(self) -> set[int]:
        tensors = [*self.module.parameters(), *list_kept_tensors(self.module)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors if has_memory(tensor)}

    def check(self, operation: Operation) -> None:
        """Start the run again before an operation that writes in place writes into memory of the model."""
        if learnt(self.module).writes:
            return
        written = operation.args[0] if operation.args else None
        if isinstance(written, Tensor) and has_memory(written) and self.owns(written):
            learnt(self.module).writes = True
            raise RunAgain

    def owns(self, tensor: Tensor) -> bool:
        """The memory of the tensor belongs to the model."""
        with without_interception():
            try:
                return tensor.untyped_storage().data_ptr() in self.storages
            except (RuntimeError, NotImplementedError):  # a tensor of vmap has no memory of its own
                return False


def list_kept_tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that modules keep besides their parameters: buffers and plain attributes."""
    for part in module.modules():
        yield from (buffer for buffer in buffers_of(part).values() if buffer is not None)
        yield from (value for value in part.__dict__.values() if isinstance(value, Tensor))


def has_memory(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and type(tensor) in (Tensor, nn.Parameter) and tensor.numel() > 0


# --- by another thread ------------------------------------------------------------------------------------------------


WeightVersions = Sequence[int]


@contextmanager
def refuse_changed_weights(
    module: nn.Module,
    since: WeightVersions | None = None,
    count: Callable[[nn.Module], WeightVersions] = count_writes,
) -> Iterator[None]:
    """Raise if the weights change inside, or have changed since they were read: half of a result would be of others."""
    before = count(module) if since is None else since
    try:
        yield
    except RuntimeError as error:  # autograd refuses tensors that were written to since the forward
        if "inplace operation" not in str(error) or count(module) == before:
            raise
        raise make_changed_error() from None
    if count(module) != before:
        raise make_changed_error()


def make_changed_error() -> ModelError:
    return ModelError(
        "The model's weights changed while it was explained. Do not train or load weights in another thread meanwhile, "
        "or explain a copy: copy.deepcopy(module)."
    )
