"""Weights that another thread changes while the model is explained: seen in torch's version counters, and refused."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from whyformer._model import count_writes
from whyformer.errors import ModelError

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
