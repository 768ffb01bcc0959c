"""Loaders: threads that load the items of a shard ahead of the computation, each with a process to decode images.

Decoding is mostly Python and would hold up the computation, which needs the same interpreter lock; a process of its own
does not. Processes take seconds to start: until one is ready, and wherever items cannot be sent to it, a thread loads
them itself. Both give the same tensors.

Items go to a process as pickles, pixels come back in shared memory. The first process is a fresh interpreter, which
does not run the caller's script again; once it has imported what it needs, it forks the others. They see no GPU, ignore
Ctrl-C, which reaches the whole group, and end when their worker does, however that ends. If one is lost, the worker
loads its items itself.
"""

import mmap
import os
import pickle
import socket
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from whyformer._bulk.fresh_process import start_process
from whyformer._bulk.items import Item
from whyformer._bulk.loading import ItemReader, LoadedItem
from whyformer._plain.failure import describe_failure
from whyformer.errors import WhyformerError

UNSENDABLE = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises
END_SECONDS = 5.0  # for a process to finish what it is at
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",  # there are no threads that a fork would lose
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
# About each item: where its pixels are, their shape and dtype, and its mark; or the code and the reason why there are
# none; or nothing: it is no image.
Found = tuple[int, tuple[int, ...], str, str | None] | tuple[str, str] | None


class LostLoader(Exception):
    """The process ended, or answered what nobody asked for."""


class LoaderProcess:
    """A process as its worker sees it; used by one thread at a time."""

    def __init__(self, connection: Connection, memory: int) -> None:
        self._connection, self._memory = connection, memory
        self._view: mmap.mmap | None = None
        self.is_ready = False

    def wait_until_ready(self) -> bool:
        """Whether it can load items. It cannot if its image processor exists in the caller's script only."""
        try:
            self.is_ready = self._connection.recv() == "ready"
        except (EOFError, OSError, pickle.UnpicklingError):
            self.is_ready = False
        return self.is_ready

    def load(self, items: Sequence[Item], message: bytes) -> list[LoadedItem | None]:
        """The items of a message, in order; None for what is no image."""
        try:
            self._connection.send_bytes(message)
            size, found = self._connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError, ValueError, TypeError):
            raise LostLoader from None
        if found is None:  # the process does not know the class of an item
            return [None] * len(items)
        pixels = self._copy_memory(size)
        return [make_loaded_item(item, one, pixels) for item, one in zip(items, found, strict=True)]

    def hang_up(self) -> None:
        """Tell the process to end; a thread that listens to it gets LostLoader."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def _copy_memory(self, size: int) -> torch.Tensor:
        """The first bytes of the shared memory; the process writes its next images over them."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        if self._view is None or len(self._view) < size:
            self._view = mmap.mmap(self._memory, size)
        return torch.frombuffer(self._view, dtype=torch.uint8, count=size).clone()

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._memory)


class LoaderProcesses:
    """Several of them, that start and end together."""

    def __init__(self, reader: bytes, count: int) -> None:
        memories = [open_shared_memory() for _ in range(count)]
        self.process, connections = start_process(
            "whyformer._bulk.loaders", "serve_items", connections=count, descriptors=memories, environment=ENVIRONMENT
        )
        self.each = [LoaderProcess(*one) for one in zip(connections, memories, strict=True)]
        with suppress(OSError):
            connections[0].send_bytes(reader)

    def end(self) -> None:
        for one in self.each:
            one.hang_up()
        if not any(one.is_ready for one in self.each):  # it is importing, which takes seconds
            self.process.kill()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def open_shared_memory() -> int:
    """The descriptor of a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("whyformer-pixels")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def make_loaded_item(item: Item, found: Found, pixels: torch.Tensor) -> LoadedItem | None:
    """The loaded item; its pixels are a view of all that came with it."""
    match found:
        case None:
            return None
        case (str(code), str(text)):
            return LoadedItem(item, error=WhyformerError(text, code=code))
        case (int(start), tuple(shape), str(kind), mark):
            dtype: torch.dtype = getattr(torch, kind)
            count = int(np.prod(shape)) * dtype.itemsize
            item = replace(item, mark=mark)
            return LoadedItem(item, pixels=pixels[start : start + count].view(dtype).view(shape), shape=shape)
    raise LostLoader


# --- in the processes -------------------------------------------------------------------------------------------------


def serve_items(*descriptors: int) -> None:
    """The program of the first process: take the reader, fork the others, load items until there are none."""
    connections = [Connection(number) for number in descriptors[: len(descriptors) // 2]]
    memories = descriptors[len(connections) :]
    try:
        reader: ItemReader = pickle.loads(connections[0].recv_bytes())
    except (EOFError, OSError):
        return
    except Exception:  # a class of the caller's script
        return connections[0].send("refused")
    torch.set_num_threads(1)
    own = next((number for number in range(1, len(connections)) if os.fork() == 0), 0)
    try:
        for number, connection in enumerate(connections):
            if number != own:  # or its end would not be noticed
                connection.close()
        with suppress(EOFError, OSError):
            answer_messages(reader, connections[own], memories[own])
        with suppress(ChildProcessError):
            while True:  # the first process ends last
                os.wait()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)  # what libraries do at the end of a process does not work in a fork of it


def answer_messages(reader: ItemReader, connection: Connection, memory: int) -> None:
    connection.send("ready")
    while True:
        message = connection.recv_bytes()
        try:
            items: Sequence[Item] = pickle.loads(message)
        except Exception:  # a class of the caller's script
            connection.send((0, None))
        else:
            connection.send(load_into_memory(reader, items, memory))


def load_into_memory(reader: ItemReader, items: Sequence[Item], memory: int) -> tuple[int, list[Found]]:
    """Write the pixels of these items to the shared memory, one after the other."""
    found: list[Found] = []
    start = 0
    for item in items:
        one = reader.load(item)
        if one.pixels is None:
            found.append(None if one.error is None else describe_failure(one.error))
            continue
        contents = one.pixels.contiguous()
        found.append((start, tuple(contents.shape), str(contents.dtype).removeprefix("torch."), one.item.mark))
        start += write_all(memory, contents.view(-1).view(torch.uint8).numpy().data, start)
        start += -start % 64  # of any dtype, the next one begins at a whole element
    if start > os.fstat(memory).st_size:
        os.ftruncate(memory, start)
    return start, found


def write_all(descriptor: int, contents: memoryview, offset: int) -> int:
    """Write all bytes at this offset; returns how many they are."""
    done = 0
    while done < len(contents):
        done += os.pwrite(descriptor, contents[done:], offset + done)
    return done


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
            self._processes = LoaderProcesses(pickle.dumps(self.reader.without_weights()), count)
        except (*UNSENDABLE, OSError):  # an image processor that exists only here; no more processes or files allowed
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
            loaded = self._load_elsewhere(process, items)
        except (Empty, LostLoader):
            if self._is_closed:
                raise CancelledError from None
            return [self.reader.load(item) for item in items]
        self._idle.put(process)
        return loaded

    def _load_elsewhere(self, process: LoaderProcess, items: Sequence[Item]) -> list[LoadedItem]:
        """What a process makes of these items; here, if they cannot be sent."""
        try:
            message = pickle.dumps(items)
        except UNSENDABLE:
            message = b""
        if not 0 < len(message) <= MAX_SENT:
            return [self.reader.load(item) for item in items]
        loaded = process.load(items, message)
        return [one or self.reader.load(item) for item, one in zip(items, loaded, strict=True)]
