"""Pauses of a recording (program/recorder.py): what is done anew in every run is not part of a program."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

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
