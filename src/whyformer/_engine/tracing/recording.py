"""Pauses of a recording (program/recorder.py): what is done anew in every run is not part of a program.

Constants that whyformer keeps between runs: a recording (program.py) may use them as it uses weights.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import Tensor

from whyformer._plain.private_torch import TorchDispatchMode, list_dispatch_modes


class PausableMode(TorchDispatchMode):
    """A mode that records operations, and can be paused."""

    def pause(self) -> AbstractContextManager[None]:
        raise NotImplementedError


@contextmanager
def pause_recording() -> Iterator[None]:
    """Inside, a recording that is under way notes nothing: for what is done anew in every run."""
    with ExitStack() as stack:
        for mode in list_dispatch_modes():
            if isinstance(mode, PausableMode):
                stack.enter_context(mode.pause())
        yield


# --- constants --------------------------------------------------------------------------------------------------------


def mark_constant(tensor: Tensor) -> Tensor:
    """Promise that this tensor will not change while it is used."""
    tensor._whyformer_constant = True  # type: ignore[attr-defined]
    return tensor


def is_marked_constant(tensor: Tensor) -> bool:
    return hasattr(tensor, "_whyformer_constant")
