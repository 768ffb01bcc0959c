"""A program as CUDA graphs: the GPU repeats all of its kernels without waiting for Python to launch each of them.

A graph has fixed addresses, so inputs are copied to its own tensors and results from them, and it serves one thread at
a time. The two parts of a program are two graphs in one pool of memory. The first run captures them; it must follow a
run of the program itself, in which libraries set up what they need.
"""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from whyformer._engine.program import Program, Slots


class CudaGraph:
    """The graphs of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lock = threading.Lock()
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.entered: list[dict[str, Tensor]] = []
        self.results: list[list[Tensor | None]] = []
        self.running: Slots | None = None

    def start(self, inputs: Mapping[str, Tensor]) -> Slots:
        """As `Program.start`; one run at a time."""
        with self.lock:
            given = yield self.repeat(0, inputs)
            yield self.repeat(1, given)
            return []

    def repeat(self, part: int, given: Mapping[str, Tensor]) -> list[Tensor]:
        if part == len(self.graphs):
            self.capture(given)
        for name, tensor in given.items():
            self.entered[part][name].copy_(tensor)
        self.graphs[part].replay()
        return [None if tensor is None else tensor.clone() for tensor in self.results[part]]  # type: ignore[misc]

    def capture(self, given: Mapping[str, Tensor]) -> None:
        own = {name: tensor.clone() for name, tensor in given.items()}
        graph = torch.cuda.CUDAGraph()
        device = next(iter(own.values())).device
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            if self.running is None:
                self.running = self.program.start(own)
                results = next(self.running)
            else:
                results = self.running.send(own)
        self.graphs.append(graph)
        self.entered.append(own)
        self.results.append(list(results))
