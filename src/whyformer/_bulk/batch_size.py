"""The batch size: as given, or the largest power of two whose memory fits a budget.

The memory of a batch grows linearly with its size, so two runs, with one item and with several, give the slope. The
result is rounded down to a power of two, so that small differences in free memory do not change the plan.
"""

from collections.abc import Callable
from functools import partial

import torch

from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.peak_memory import free_memory, measure_peak_memory

DEFAULT_BATCH = {"cpu": 16, "cuda": 64}  # items, by device, where nothing is measured
PROBED = 8  # items of the second run
MAX_BATCH = 256
SHARE = 0.7  # of the free memory of a GPU


def find_batch_size(run: Callable[[int], None], device: torch.device, budget: int | None) -> int:
    """The largest batch whose memory is expected to stay below the budget (bytes), by default a share of the GPU.

    On a processor nothing is measured unless there is a budget. `run` explains a batch of so many items.
    """
    if device.type == "cuda" and budget is None:
        free, _ = torch.cuda.mem_get_info(device)
        budget = int(SHARE * (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)))
    if budget is None:
        return DEFAULT_BATCH.get(device.type, 16)
    run(1)  # what is loaded on first use does not count
    alone = measure_peak_memory(partial(run, 1), device)
    try:
        several = measure_peak_memory(partial(run, PROBED), device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        free_memory()
        return 1
    if alone is None or several is None:
        return DEFAULT_BATCH.get(device.type, 16)
    return choose_power_of_two(alone, several, budget)


def choose_power_of_two(alone: int, several: int, budget: int) -> int:
    """From the memory (bytes) of one item and of PROBED items."""
    slope = max((several - alone) / (PROBED - 1), 1.0)
    count = int((budget - alone) / slope) + 1
    return 1 << max(0, min(count, MAX_BATCH).bit_length() - 1)
