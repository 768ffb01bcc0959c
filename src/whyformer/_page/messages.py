"""Messages between the server and its processes: a line of JSON, then plain bytes. Neither side unpickles anything."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any


def write_message(value: Any, *blobs: bytes) -> bytes:
    """A JSON value and what follows it; surrogates and NaN are kept."""
    return b"\n".join([json.dumps([value, [len(one) for one in blobs]]).encode("ascii"), b"".join(blobs)])


def read_message(message: bytes) -> tuple[Any, list[bytes]]:
    """The value and the blobs of a message."""
    line, _, rest = message.partition(b"\n")
    value, sizes = json.loads(line)
    return value, [rest[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


@contextmanager
def kill_after(seconds: float, process: "subprocess.Popen[bytes]") -> Iterator[threading.Event]:
    """Kill a process that takes longer, so that nobody waits for it; the event says whether it was killed."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
