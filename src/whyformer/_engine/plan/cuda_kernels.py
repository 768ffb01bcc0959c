"""CUDA graphs: the GPU repeats all kernels of a function without waiting for Python to launch each of them.

A graph has fixed addresses, so inputs are copied to its own tensors and results from them, and it serves one thread at
a time. It is captured when it is made, which must follow a run of the function itself, in which libraries set up what
they need.

A capture must not be felt outside. Up to torch 2.11 a capture takes the default random generator of the GPU, and one
that fails does not give it back. Here it takes a copy: other threads draw random numbers as before, but for an instant
at the start of a capture, so none starts while another thread works with torch (`is_torch_used_elsewhere`). A failed
capture also leaves torch's allocator directing memory to it: that is ended here.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._plain.peak_memory import without_collection
from whyformer._plain.private_torch import end_pool_of_failed_capture, frames_of_threads

FAILED: list[torch.cuda.CUDAGraph] = []  # torch may still ask them which memory is theirs
CAPTURING = threading.Lock()  # one at a time
TORCH = next(iter(torch.__path__))
# Where threads of Python wait for others
WAITING_FILES = frozenset(("threading.py", "queue.py", "selectors.py", "socket.py", "connection.py"))
WAITING_CALLS = frozenset("wait get join select poll _poll accept _recv _wait_for_tstate_lock".split())


def is_torch_used_elsewhere() -> bool:
    """Whether another thread that uses torch does anything but wait."""
    own = threading.get_ident()
    return any(is_using_torch(frame) for thread, frame in frames_of_threads().items() if thread != own)


def is_using_torch(innermost: FrameType) -> bool:
    """Whether code of torch, or code that knows torch by a name, runs in a thread; not if it waits for another one."""
    code = innermost.f_code
    if Path(code.co_filename).name in WAITING_FILES and code.co_name in WAITING_CALLS:
        return False
    frame: FrameType | None = innermost
    while frame is not None:
        is_torch = frame.f_code.co_filename.startswith(TORCH)
        if is_torch or any(map(is_of_torch, [*frame.f_globals.values(), *frame.f_locals.values()])):
            return True
        frame = frame.f_back
    return False


def is_of_torch(value: object) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] == "torch"
    return isinstance(value, Tensor | nn.Module)


class Kernels:
    """The kernels of a function: what it returns is computed anew by each replay.

    after: those that are always replayed before, in whose stream and memory these run.
    """

    stream: torch.cuda.Stream
    pool: Any  # an identity of torch's own

    def __init__(
        self, function: Callable[[], Sequence[Tensor]], device: torch.device, after: "Kernels | None" = None
    ) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(device) if after is None else after.stream
        self.pool = torch.cuda.graph_pool_handle() if after is None else after.pool
        with (
            CAPTURING,
            torch.cuda.device(device),
            torch.cuda.stream(self.stream),
            without_collection(),  # which might free another graph; torch.cuda.graph collects before, for a second
            hidden_from_transformers(),
        ):
            torch.cuda.synchronize()
            with copied_generator():
                self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                self.results = function()
            finally:
                self.end_capture()

    def end_capture(self) -> None:
        try:
            self.graph.capture_end()
        except BaseException:
            FAILED.append(self.graph)
            end_pool_of_failed_capture(torch.cuda.current_device(), self.pool)
            raise

    def replay(self) -> None:
        self.graph.replay()


@contextmanager
def copied_generator() -> Iterator[None]:
    """Inside, the default generator of the current GPU has a copy of its state, for a capture that begins to take."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    own = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(own)


@contextmanager
def hidden_from_transformers() -> Iterator[None]:
    """Inside, models do in this thread what they do in an ordinary run.

    transformers asks whether a capture is going on, and then makes whole masks, with which attention takes twice as
    long. What it would ask a mask instead is asked again by each replay (plan/repeats.py).
    """
    library, own = sys.modules.get("transformers.utils.import_utils"), threading.get_ident()
    ask = getattr(library, "is_cuda_stream_capturing", None)
    if library is None or ask is None:
        yield
        return
    library.is_cuda_stream_capturing = lambda: threading.get_ident() != own and ask()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        library.is_cuda_stream_capturing = ask  # type: ignore[attr-defined]
