"""A worker: holds the model and turns a shard of items into the bytes of a part.

While a shard is computed, the next one is loaded, and while a batch of images is computed, the next one is moved to the
device and checked there. All methods share one capture where they can. If something fails on
a batch, each item is tried alone, so that one bad item costs one item; out of memory, the batch is cut in half.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from whyformer._bulk.engine import LocalWorker, Outcomes
from whyformer._bulk.feed import Encoder, ShardFeed
from whyformer._bulk.items import Item
from whyformer._bulk.loaders import ItemLoaders
from whyformer._bulk.loading import ItemReader, LoadedItem, encode_batch, find_label_index
from whyformer._bulk.plan import BulkPlan
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.rows import Prediction, make_bulk_row, make_error_row
from whyformer._bulk.stopping import StopOverdue, StopRequest
from whyformer._engine import Capture, TargetLike, TargetNames, probabilities_of, read_logits
from whyformer._explain.explain import as_model
from whyformer._explain.hiding import add_hiding
from whyformer._explain.method_call import MethodCall, MethodLike, label_methods
from whyformer._explain.sharing import explain_by_each, record_for_methods, share_captures
from whyformer._explain.windows import WindowedTexts
from whyformer._model import EncodedBatch, Model
from whyformer._model.loading import open as open_model
from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.peak_memory import free_memory
from whyformer._plain.torch_state import neutral_torch
from whyformer._plain.versions import __version__
from whyformer._runs.parts import BulkRow, encode_part, fingerprint_parts
from whyformer._runs.repeatable import repeatable_engine
from whyformer._runs.weights import hash_weights
from whyformer.errors import ModelError
from whyformer.results.explanation import Explanation

RowsByKey = dict[tuple[int, str], BulkRow]  # by the position of the item and the label of the method
EncodedAhead = EncodedBatch | Exception | None


@dataclass(frozen=True)
class ModelSetup(ABC):
    """The model of a worker and how it runs, in a form that can be sent to another process or machine."""

    model: str | Model  # a name or path to open, or the model itself
    weights: str = field(default="", kw_only=True)  # the hash of the plan
    fingerprint: str = field(default="", kw_only=True)  # of the parts
    batch: int = field(default=1, kw_only=True)
    threads: int = field(default=1, kw_only=True)
    precision: str = field(default="", kw_only=True)  # of matrix products in float32 on a GPU
    version: str = field(default=__version__, kw_only=True)

    @abstractmethod
    def make_worker(self, model: Model) -> LocalWorker:
        """A worker with this open model."""

    def follow_plan(self, plan: BulkPlan) -> Self:
        """The setup of a run; without a plan it is good for single items."""
        return replace(
            self,
            weights=plan.fields["model"]["weights"],
            fingerprint=fingerprint_parts(plan.fields),
            batch=plan.settings.batch,
            threads=plan.settings.threads,
            precision=plan.fields["precision"],
        )

    def start(self, device: str) -> LocalWorker:
        """Open the model on a device and check that it is the model of the plan. For a process of its own."""
        if self.version != __version__:
            raise ModelError(
                f"This worker has whyformer {__version__}, but the run was planned by {self.version}. Install the same "
                "version everywhere.",
                code="E_ENGINE",
            )
        torch.set_num_threads(self.threads)
        torch.set_float32_matmul_precision(self.precision)
        if isinstance(self.model, Model):
            opened = self.model
            opened.module.to(device)
        else:
            opened = open_model(self.model, device=device)
        if hash_weights(opened.module) != self.weights:
            raise ModelError(
                f"The weights of {opened.name} on this worker are not those of the plan. Copy the same model to every "
                "machine.",
                code="E_MODEL_WEIGHTS",
            )
        return self.make_worker(opened)


@dataclass(frozen=True)
class WorkerSetup(ModelSetup):
    """Everything that a worker needs to explain items."""

    methods: tuple[MethodLike, ...]
    target: TargetLike
    truncate: bool
    maps: bool
    loaders: int  # threads that load items
    loads_in_processes: bool = False  # each thread has a process that decodes images
    windows: bool | int = False  # for texts that are too long
    check: bool = False  # also ask with the highest units hidden, and with everything hidden

    def make_worker(self, model: Model) -> "ShardWorker":
        return ShardWorker(self, model)


class ShardWorker:
    """An open model with the methods to explain it by."""

    def __init__(self, setup: WorkerSetup, model: Model) -> None:
        self.setup, self.model = setup, as_model(model)
        self.methods = label_methods(setup.methods)
        self.limit = setup.batch  # items per batch; falls when memory runs out
        self.reader = ItemReader(
            model,
            truncate=setup.truncate,
            keeps_images=setup.maps and model.kind == "image",
            needs_label=setup.target == "label",
            windows=setup.windows,
        )
        self.loaders = ItemLoaders(self.reader, setup.loaders, in_processes=setup.loads_in_processes)
        self.encoder = Encoder(self.model)
        self.check_stop: Callable[[], None] = lambda: None  # called between batches; raises to give up
        self._feeds: dict[int, ShardFeed] = {}  # by the number of the shard

    def run(self, task: ShardTask, upcoming: ShardTask | None = None) -> bytes:
        """The part of this shard. Meanwhile `upcoming` is loaded: the shard that this worker gets next, if known."""
        if task.number not in self._feeds:  # another worker took the shard that was to come next
            self._close_feeds()
        for one in (task, upcoming):
            if one is not None and one.number not in self._feeds:
                self._feeds[one.number] = ShardFeed(self.loaders.start(one.items), self.encoder, self.limit)
        try:
            rows = self.make_rows(task.items, self._feeds[task.number])
        finally:
            self._feeds.pop(task.number).close()
        return encode_part(rows, task.number, self.setup.fingerprint)

    def close(self) -> None:
        self._close_feeds()
        self.loaders.close()

    def _close_feeds(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds = {}

    @neutral_torch()
    @repeatable_engine()
    def make_rows(self, items: Sequence[Item], feed: ShardFeed) -> list[BulkRow]:
        """A row for each item and method that is missing, in the order of the input."""
        rows: RowsByKey = {}
        for batch, encoded in feed:
            self.check_stop()
            rows |= self.explain_batch(batch, self.choose_methods(batch[0].item), encoded)
        for item, error in feed.failed:
            rows |= self.make_error_rows(item, self.choose_methods(item), error)
        return [rows[item.position, label] for item in items for label in self.choose_methods(item)]

    def choose_methods(self, item: Item) -> Mapping[str, MethodCall]:
        """What the item is explained by: all methods, or those whose rows are missing."""
        return {label: self.methods[label] for label in item.methods} if item.methods else self.methods

    def explain_batch(
        self, batch: Sequence[LoadedItem], methods: Mapping[str, MethodCall], encoded: EncodedAhead = None
    ) -> RowsByKey:
        """The rows of a batch. What fails on all items together is tried on each alone."""
        try:
            rows, failed = self.explain_together(batch, methods, encoded)
        except Exception as error:
            if is_out_of_memory(error) and len(batch) > 1:
                return self.explain_halves(batch, methods)
            rows, failed = {}, dict.fromkeys(methods, error)
        if len(batch) == 1:
            for label, reason in failed.items():
                rows |= self.make_error_rows(batch[0].item, [label], reason)
        elif failed:
            for one in batch:
                rows |= self.explain_batch([one], {label: methods[label] for label in failed})
        return rows

    def explain_halves(self, batch: Sequence[LoadedItem], methods: Mapping[str, MethodCall]) -> RowsByKey:
        """The same batch in two parts, after memory ran out; later batches are smaller from the start."""
        half = (len(batch) + 1) // 2
        self.limit = min(self.limit, half)
        free_memory()
        print(f"bulk: out of memory for a batch of {len(batch)}; going on with {half}", file=sys.stderr, flush=True)
        return self.explain_batch(batch[:half], methods) | self.explain_batch(batch[half:], methods)

    def explain_together(
        self, batch: Sequence[LoadedItem], methods: Mapping[str, MethodCall], encoded: EncodedAhead = None
    ) -> tuple[RowsByKey, dict[str, Exception]]:
        """The rows by every method that works on this batch, and the errors of the others."""
        if any(one.is_long for one in batch):
            return self.explain_long(batch, methods)
        if isinstance(encoded, Exception):
            raise encoded
        if encoded is None:
            encoded = encode_batch(self.model, batch)
        run = partial(
            record_for_methods,
            model=self.model,
            encoded=encoded,
            target=self.choose_targets(batch),
            versus=None,
            extra_sites=("probe",) if self.setup.check else (),
        )
        captures = share_captures(list(methods.values()), run, tolerate=(Exception,))
        explanations, failed = explain_by_each(methods, captures, self.model, encoded, tolerate=(Exception,))
        capture = next((capture for capture in captures if isinstance(capture, Capture)), None)
        if self.setup.check and capture is not None:
            explanations = {label: add_hiding(one, capture["probe"]) for label, one in explanations.items()}
        predictions = [Prediction()] * len(batch)
        if capture is not None and capture.fixed is None and all(target.index >= 0 for target in capture.targets):
            logits = read_logits(encoded, capture.logits)[0].detach()
            predictions = describe_predictions(self.model, logits, partial(name_class, self.model, capture))
        return self.make_all_rows(batch, explanations, predictions), failed

    def explain_long(
        self, batch: Sequence[LoadedItem], methods: Mapping[str, MethodCall]
    ) -> tuple[RowsByKey, dict[str, Exception]]:
        """The same for texts in windows; what is predicted is the mean of their logits."""
        texts = WindowedTexts(
            self.model, [one.content for one in batch], self.setup.windows, at_once=max(1, self.limit)
        )
        explanations, failed = texts.explain(methods, self.choose_targets(batch), None, tolerate=(Exception,))
        predictions = [Prediction()] * len(batch)
        if texts.mean_logits is not None:
            names = TargetNames(self.model, texts.mean_logits.size(1), is_language=texts.is_language)
            predictions = describe_predictions(self.model, texts.mean_logits, lambda _, index: names.label(index))
        return self.make_all_rows(batch, explanations, predictions), failed

    def make_all_rows(
        self, batch: Sequence[LoadedItem], explanations: Mapping[str, Explanation], predictions: Sequence[Prediction]
    ) -> RowsByKey:
        kind, rows = self.model.kind, RowsByKey()
        for label, explanation in explanations.items():
            for i, one in enumerate(batch):
                row = make_bulk_row(one.item, label, kind, explanation, i, maps=self.setup.maps)
                rows[one.item.position, label] = replace(row, **predictions[i])
        return rows

    def choose_targets(self, batch: Sequence[LoadedItem]) -> TargetLike:
        """The classes to explain: predicted (None), the label of each item, or the one given."""
        if self.setup.target == "predicted":
            return None
        if self.setup.target == "label":
            return [find_label_index(self.model, one.item) for one in batch]
        return self.setup.target

    def make_error_rows(self, item: Item, methods: Iterable[str], error: Exception) -> RowsByKey:
        return {(item.position, label): make_error_row(item, label, self.model.kind, error) for label in methods}


def describe_predictions(model: Model, logits: Tensor, name: Callable[[int, int], str]) -> list[Prediction]:
    """The columns about what the model predicts. name: of example i and a class."""
    probabilities = probabilities_of(model.module, logits)
    chances = [None] * len(logits) if probabilities is None else probabilities.amax(-1).float().tolist()
    return [
        {"prediction": index, "prediction_name": name(i, index), "probability": chances[i]}
        for i, index in enumerate(logits.argmax(-1).tolist())
    ]


def name_class(model: Model, capture: Capture, i: int, index: int) -> str:
    """The name of the predicted class or token."""
    target = capture.targets[i]
    if target.index == index:
        return target.label
    return model.labels[index] if model.labels is not None and index < len(model.labels) else str(index)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with this many threads; afterwards with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThisProcess:
    """One worker, here."""

    parallel = 1

    def __init__(self, worker: LocalWorker, threads: int = 1) -> None:
        self.worker, self.threads = worker, threads

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes:
        self.worker.check_stop = stop.check
        try:
            task = next(tasks, None)
            while task is not None and not stop:
                upcoming = next(tasks, None)
                try:
                    with use_threads(self.threads):
                        part = self.worker.run(task, upcoming)
                except StopOverdue:
                    return
                yield task, part
                task = upcoming
        finally:
            self.worker.close()
