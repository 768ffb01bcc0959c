"""Functions that a model compiles itself (`torch.compile`), run as they are written, so that interception sees them.

Torch has one switch for the whole process, `torch.compiler.set_stance`. It is set while such a model runs here, and
only then: what other threads compile meanwhile also runs as it is written. Runs without interception do the same, or
every batch size of a perturbation would be compiled anew.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from weakref import WeakSet

import torch
from torch import nn

from whyformer._engine.run.foreign_errors import passes_through

COMPILERS: WeakSet[nn.Module] = WeakSet()  # models whose forward calls compiled functions
_lock = Lock()
_running = 0  # runs in all threads
_stance = ExitStack()


class CallsCompiled(Exception):
    """A compiled function cannot run under interception."""


def notice_compiled_part(module: nn.Module, error: Exception) -> None:
    """Raise CallsCompiled if the compiler failed on a part of a model that was not known to have any."""
    if module not in COMPILERS and passes_through(error.__traceback__, "torch._dynamo.eval_frame"):
        COMPILERS.add(module)
        raise CallsCompiled from error


@contextmanager
def run_compiled_parts_as_written() -> Iterator[None]:
    """Inside, compiled functions run without the compiler."""
    _change_count(+1)
    try:
        yield
    finally:
        _change_count(-1)


def _change_count(by: int) -> None:
    global _running
    with _lock:
        _running += by
        if by == _running == 1:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        elif _running == 0:
            _stance.close()
