"""Hidden states at a boundary between two blocks, for methods with an `at` setting."""

from collections.abc import Sequence

from torch import Tensor

from whyformer.errors import MethodError, UnsupportedModel
from whyformer.methods._settings import resolve_layer


def states_at(states: Sequence[Tensor], at: str | int) -> Tensor:
    """The hidden states that enter block `at`; the last index, or -1, is the output of the last block."""
    if isinstance(at, str):
        raise MethodError(f"at must be 'input' or the number of a block, got {at!r}.", code="E_OPTION")
    return states[resolve_layer("at", at, len(states))]


def refuse_two_streams(streams: Sequence[int], what: str) -> None:
    if len(streams) > 1:
        raise UnsupportedModel(f"{what} needs the states of one sequence. An encoder and a decoder have two.")
    if streams:
        raise UnsupportedModel(
            f"{what} needs the same tokens at every block. Blocks of this model have windows, or other tokens."
        )
