"""The batches of a shard, moved to the device by a thread while the batch before is computed, and across shards.

On a GPU they go there on a stream of their own, so that copying and checking do not wait for the computation.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from queue import Full, Queue
from typing import TypeAlias

import torch

from whyformer._bulk.items import Item
from whyformer._bulk.loaders import LoadingItems
from whyformer._bulk.loading import LoadedItem, encode_batch, form_batches
from whyformer._model import EncodedBatch, Model

POLL_SECONDS = 0.1
# Encoded, or the error, or None: to be encoded by who explains it.
FedBatch: TypeAlias = tuple[Sequence[LoadedItem], EncodedBatch | Exception | None]


class Encoder:
    """Encodes batches for one model, one at a time, on a stream of its own."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.last_turn = threading.Event()  # of the shard that was begun last: set when all its batches are encoded
        self.last_turn.set()
        # A tokenizer serves one thread only, and a batch of texts is encoded in no time.
        self.is_ahead = model.kind != "text"
        self.stream = torch.cuda.Stream(model.device) if model.device.type == "cuda" else None

    def encode(self, batch: Sequence[LoadedItem], reader: "torch.cuda.Stream | None") -> EncodedBatch:
        """A batch that is complete on the device; `reader` is the stream that will use it."""
        with ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(torch.cuda.device(self.model.device))
                stack.enter_context(torch.cuda.stream(self.stream))
            encoded = encode_batch(self.model, batch)
            if self.stream is not None and reader is not None:
                for tensor in encoded.inputs.values():
                    tensor.record_stream(reader)  # its memory is not free before that stream has read it
                self.stream.synchronize()
        return encoded


class ShardFeed:
    """Iterating yields the batches of a shard; one more waits, and one is being encoded."""

    def __init__(self, loading: LoadingItems, encoder: Encoder, size: int) -> None:
        self.failed: list[tuple[Item, Exception]] = []  # items that could not be loaded; complete at the end
        self._loading, self._encoder, self._size = loading, encoder, size
        self._queue: Queue[FedBatch | Exception | None] = Queue(1)
        self._is_closed = False
        self._turn_before, self._turn = encoder.last_turn, threading.Event()
        encoder.last_turn = self._turn
        self._reader = torch.cuda.current_stream(encoder.model.device) if encoder.stream is not None else None
        threading.Thread(target=self._fill, daemon=True, name="whyformer-encoder").start()

    def __iter__(self) -> Iterator[FedBatch]:
        while (fed := self._queue.get()) is not None:
            if isinstance(fed, Exception):
                raise fed
            yield fed

    def close(self) -> None:
        """Give up what is not computed yet."""
        self._is_closed = True
        self._loading.cancel()

    def _fill(self) -> None:
        self._turn_before.wait()
        try:
            for batch in form_batches(self._watch(), self._size):
                self._put((batch, self._encode(batch)))
            self._put(None)
        except Exception as error:
            self._put(error)
        finally:
            self._turn.set()

    def _watch(self) -> Iterator[LoadedItem]:
        for one in self._loading:
            if one.error is not None:
                self.failed.append((one.item, one.error))
            if self._is_closed:
                return
            yield one

    def _encode(self, batch: Sequence[LoadedItem]) -> EncodedBatch | Exception | None:
        if not self._encoder.is_ahead or self._is_closed:
            return None
        try:
            return self._encoder.encode(batch, self._reader)
        except Exception as error:
            return error

    def _put(self, fed: FedBatch | Exception | None) -> None:
        while not self._is_closed:
            try:
                return self._queue.put(fed, timeout=POLL_SECONDS)
            except Full:
                continue
