"""A process that reads files which may harm their reader, or take all memory or time: then it ends with them."""

import os
import resource
import subprocess
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from whyformer._bulk.fresh_process import start_process
from whyformer._page.limits import Limits
from whyformer._page.messages import kill_after

MORE_BYTES = 10_000_000  # of an answer, besides the pixels of an image: its preview
START_SECONDS = 60.0  # for importing the library


class LimitedProcess:
    """Such a process, as the server sees it; it is started again when it has died. Call from one thread."""

    def __init__(self, limits: Limits, module: str, program: str) -> None:
        self.limits, self.module, self.program = limits, module, program
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def start(self) -> "tuple[subprocess.Popen[bytes], Connection]":
        if self._connection is None or self._process is None or self._process.poll() is not None:
            self.stop()
            process, (connection,) = start_process(self.module, self.program)
            self._process, self._connection = process, connection
            self.ask(process, connection, b"%d" % self.limits.decode_bytes, START_SECONDS)
        return self._process, self._connection

    def ask(self, process: "subprocess.Popen[bytes]", connection: Connection, data: bytes, seconds: float) -> bytes:
        """What the process answers to these bytes. Neither sending nor waiting may take longer."""
        try:
            with kill_after(seconds, process) as late:
                connection.send_bytes(data)
                return connection.recv_bytes(3 * self.limits.image_pixels + MORE_BYTES)
        except (EOFError, OSError):
            self.stop()
            if late.is_set():
                raise TimeoutError from None
            raise

    def stop(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None


def answer_each(descriptor: int, answer: Callable[[bytes], bytes]) -> None:
    """In the process: answer one message after the other until the server goes away. The first one is the limit."""
    connection = Connection(descriptor)
    limit_memory(int(connection.recv_bytes()))
    connection.send_bytes(b"ready")
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        connection.send_bytes(answer(data))


def limit_memory(more: int) -> None:
    """The process may take so many bytes more than it has; nothing is limited where Linux does not say how many."""
    with suppress(ValueError, OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
