"""A program as one CUDA graph: the GPU repeats its kernels without Python."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from whyformer._engine.plan.cuda_kernels import Kernels
from whyformer._engine.program.program import RecordedProgram

T = TypeVar("T")


class CudaGraph:
    """The graph of one program."""

    def __init__(self, program: RecordedProgram, inputs: Mapping[str, Tensor]) -> None:
        self.lock = threading.Lock()
        self.entered = {name: tensor.clone() for name, tensor in inputs.items()}
        device = next(iter(inputs.values())).device
        self.kernels = Kernels(lambda: program.run(self.entered), device)

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
            self.kernels.replay()
            if meanwhile is not None:
                meanwhile()
            return take(self.kernels.results)
