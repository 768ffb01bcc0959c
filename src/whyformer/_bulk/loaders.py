"""Loaders: threads that load the items of a shard ahead of the computation, each with a process to decode images.

Decoding is mostly Python and would hold up the computation, which needs the same interpreter lock; a process of its own
does not. Processes take seconds to start: until one is ready, and wherever items cannot be sent to it, a thread loads
them itself. Both give the same tensors.
"""

import pickle
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from torch import Tensor

from whyformer._bulk.items import Item
from whyformer._bulk.loader_process import LoaderProcess, LoaderProcesses, LostLoader
from whyformer._bulk.loading import ItemReader, LoadedItem

CHUNK = 8  # items per message
MAX_SENT = 2**23  # bytes per message; a data set that is sent along with each item is better read here


class LoadingItems:
    """The items of a shard while they are loaded; iterating yields them in order, as they arrive."""

    def __init__(self, chunks: "list[Future[list[LoadedItem]]]") -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[LoadedItem]:
        while self._chunks:
            yield from self._chunks.pop(0).result()  # dropped at once: pixels are large

    def cancel(self) -> None:
        for chunk in self._chunks:
            chunk.cancel()


class ItemLoaders:
    """Loads items for one model in several threads; images in as many processes if `in_processes`."""

    def __init__(self, reader: ItemReader, count: int, *, in_processes: bool = False) -> None:
        self.reader = reader
        is_image = reader.model.kind == "image"
        self._pool = ThreadPoolExecutor(count if is_image else 1, thread_name_prefix="whyformer-loader")
        self._idle: SimpleQueue[LoaderProcess] = SimpleQueue()
        self._processes: LoaderProcesses | None = None
        self._is_closed = False
        self._count = count if in_processes and is_image and not reader.keeps_images else 0

    def start(self, items: Sequence[Item]) -> LoadingItems:
        """Begin to load items; returns at once."""
        if self._count and not all(isinstance(item.content, Tensor | dict) for item in items):
            self._start_processes()
        chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
        return LoadingItems([self._pool.submit(self._load, chunk) for chunk in chunks])

    def close(self) -> None:
        """End the processes; threads end when they have loaded what they are at."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.end()

    def _start_processes(self) -> None:
        count, self._count = self._count, 0  # once
        try:
            start = pickle.dumps(self.reader.without_weights())
        except (pickle.PicklingError, AttributeError, TypeError):  # an image processor that exists only here
            return
        try:
            self._processes = LoaderProcesses(start, count)
        except OSError:  # the system allows no more processes or files
            return
        for process in self._processes.each:
            threading.Thread(target=self._welcome, args=(process,), daemon=True, name="whyformer-welcome").start()

    def _welcome(self, process: LoaderProcess) -> None:
        if process.wait_until_ready():
            self._idle.put(process)

    def _load(self, items: Sequence[Item]) -> list[LoadedItem]:
        if self._is_closed:
            raise CancelledError
        try:
            process = self._idle.get_nowait()
        except Empty:
            return [self.reader.load(item) for item in items]
        try:
            loaded = self._load_elsewhere(process, items)
        except LostLoader:
            if self._is_closed:
                raise CancelledError from None
            return [self.reader.load(item) for item in items]
        self._idle.put(process)
        return loaded

    def _load_elsewhere(self, process: LoaderProcess, items: Sequence[Item]) -> list[LoadedItem]:
        """What a process makes of these items; here, if they cannot be sent."""
        try:
            message = pickle.dumps(items)
        except (pickle.PicklingError, AttributeError, TypeError):
            message = b""
        if not 0 < len(message) <= MAX_SENT:
            return [self.reader.load(item) for item in items]
        loaded = process.load(items, message)
        return [one or self.reader.load(item) for item, one in zip(items, loaded, strict=True)]
