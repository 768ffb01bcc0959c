"""A trial run before the plan: explain one item here, to find what would fail on every item, and to measure memory.

The batch size is as given, or the largest power of two whose memory fits a budget. The memory of a batch grows linearly
with its size, so two runs, with one item and with several, give the slope. The result is rounded down to a power of
two, so that small differences in free memory do not change the plan.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

import torch

from whyformer._bulk.items import ItemList
from whyformer._bulk.loading import LoadedItem
from whyformer._bulk.plan import BatchSettings
from whyformer._bulk.settings import BulkSettings
from whyformer._bulk.worker import ShardWorker, WorkerSetup
from whyformer._model import Model
from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.peak_memory import free_memory, measure_peak_memory
from whyformer.errors import MethodError, ModelError, NotCaptured, TargetError

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


DEFAULT_SHARD = 64  # items; on a GPU at least four batches
TRIED = 64  # items among which one must be usable
UNUSABLE = (ModelError, MethodError, TargetError, NotCaptured)  # errors that every item would have


class TrialRun:
    """One item explained in this process before the run: finds what would fail on every item, and measures."""

    def __init__(self, setup: WorkerSetup, opened: Model, items: ItemList) -> None:
        self.worker = ShardWorker(setup, opened)
        try:
            loaded = [self.worker.reader.load(item) for item in islice(items, TRIED)]
        finally:
            self.worker.close()
        self.item = max((one for one in loaded if one.error is None), key=lambda one: one.length, default=None)
        self.bytes_per_item = self._explain() if self.item is not None else 0

    def _explain(self) -> int:
        """Raise what every item would fail with; returns the bytes of the rows."""
        rows, failed = self.worker.explain_together(self._repeat(1), self.worker.methods)
        for error in failed.values():
            if isinstance(error, UNUSABLE):
                raise error
        sizes = (0 if row.scores is None else row.scores.nbytes for row in rows.values())
        return sum(sizes) + sum(len(row.map_png or b"") + len(row.source or "") for row in rows.values())

    def run(self, count: int) -> None:
        """Explain the item so many times in one batch."""
        self.worker.explain_together(self._repeat(count), self.worker.methods)

    def _repeat(self, count: int) -> list[LoadedItem]:
        return [self.item] * count if self.item is not None else []


def choose_batches(
    stored: Mapping[str, int], trial: TrialRun | None, device: torch.device, asked: BulkSettings
) -> BatchSettings:
    """What was asked for; else what the run in the folder was begun with; else the defaults."""
    batch = asked.batch_size or stored.get("batch")
    if batch is None:
        batch = DEFAULT_BATCH.get(device.type, 16)
        if trial is not None and trial.item is not None and trial.worker.model.device.type == device.type:
            batch = find_batch_size(trial.run, trial.worker.model.device, asked.memory)
    default_shard = max(DEFAULT_SHARD, 4 * batch) if device.type == "cuda" else DEFAULT_SHARD
    return BatchSettings(
        shard=int(asked.shard or stored.get("shard") or default_shard),
        batch=int(batch),
        threads=int(asked.threads or stored.get("threads") or 1),
    )
