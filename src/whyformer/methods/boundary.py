"""A place between two blocks, where the hidden states can be looked at."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whyformer.errors import MethodError
from whyformer.methods.choice import layer_index


def states_at(states: Sequence[Tensor], at: Any) -> Tensor:
    """What enters block `at`; the last, or -1, is what leaves the model's last block."""
    if isinstance(at, str):
        raise MethodError(f"at={at!r} is not a place. Give 'input' or the number of a block.")
    return states[layer_index("at", at, len(states))]
