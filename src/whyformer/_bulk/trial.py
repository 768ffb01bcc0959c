"""A trial run before the plan: explain one item here, to find what would fail on every item, and to measure memory."""

from collections.abc import Mapping
from itertools import islice

import torch

from whyformer._bulk.batch_size import DEFAULT_BATCH, find_batch_size
from whyformer._bulk.items import ItemList
from whyformer._bulk.loading import LoadedItem
from whyformer._bulk.plan import BatchSettings
from whyformer._bulk.worker import ShardWorker, WorkerSetup
from whyformer._model import Model
from whyformer.errors import MethodError, ModelError, NotCaptured, TargetError

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
        usable = [one for one in loaded if one.error is None]
        self.item = max(usable, key=lambda one: one.length, default=None)
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


def choose_settings(
    stored: Mapping[str, int],
    trial: TrialRun | None,
    device: torch.device,
    *,
    batch: int | None,
    memory: int | None,
    shard: int | None,
    threads: int | None,
) -> BatchSettings:
    """What was asked for; else what the run in the folder was begun with; else the defaults."""
    batch = batch or stored.get("batch")
    if batch is None:
        batch = DEFAULT_BATCH.get(device.type, 16)
        if trial is not None and trial.item is not None and trial.worker.model.device.type == device.type:
            batch = find_batch_size(trial.run, trial.worker.model.device, memory)
    default_shard = max(DEFAULT_SHARD, 4 * batch) if device.type == "cuda" else DEFAULT_SHARD
    return BatchSettings(
        shard=int(shard or stored.get("shard") or default_shard),
        batch=int(batch),
        threads=int(threads or stored.get("threads") or 1),
    )
