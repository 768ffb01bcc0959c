"""A program as a CUDA graph: the GPU repeats all of its kernels without waiting for Python to launch each of them.

A graph has fixed addresses, so inputs are copied to its own tensors and results from them, and it serves one thread at
a time. It is captured when it is made, which must follow a run of the program itself, in which libraries set up what
they need.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from whyformer._engine.program.program import RecordedProgram

T = TypeVar("T")


class CudaGraph:
    """The graph of one program."""

    def __init__(self, program: RecordedProgram, inputs: Mapping[str, Tensor]) -> None:
        self.lock = threading.Lock()
        self.entered = {name: tensor.clone() for name, tensor in inputs.items()}
        self.graph = torch.cuda.CUDAGraph()
        device = next(iter(inputs.values())).device
        with torch.cuda.device(device), torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.results = program.run(self.entered)

    def run(
        self,
        inputs: Mapping[str, Tensor],
        take: Callable[[Sequence[Tensor]], T],
        meanwhile: Callable[[], None] | None = None,
    ) -> T:
        """What `take` makes of the results, which the next run overwrites. meanwhile: called while the GPU computes."""
        with self.lock:
            for name, tensor in inputs.items():
                self.entered[name].copy_(tensor, non_blocking=True)
            self.graph.replay()
            if meanwhile is not None:
                meanwhile()
            return take(self.results)
