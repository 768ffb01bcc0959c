"""A place between two blocks, where the hidden states can be looked at."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whyformer.errors import MethodError
from whyformer.methods._settings import resolve_layer


def states_at(states: Sequence[Tensor], at: Any) -> Tensor:
    """What enters block `at`; the last, or -1, is what leaves the model's last block."""
    if isinstance(at, str):
        raise MethodError(f"at={at!r} is not a place. Give 'input' or the number of a block.")
    return states[resolve_layer("at", at, len(states))]
