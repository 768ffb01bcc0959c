"""Run commands of whyformer with a real pseudo-terminal as standard output and standard error."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.cells import cell_len

from whyformer import cli

OUR_CODES = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[K")  # colours, and the end of a progress line
PROGRESS_LINE = re.compile(r"\r[^\r\n]*\x1b\[K")


class Shown(NamedTuple):
    """What a terminal received, and the exit status."""

    raw: str
    status: int

    @property
    def text(self) -> str:
        """What a person reads in the end: without colours and progress lines."""
        return OUR_CODES.sub("", PROGRESS_LINE.sub("", self.raw.replace("\r\n", "\n")))

    @property
    def widest(self) -> int:
        return max(map(cell_len, self.text.split("\n")))


@contextmanager
def open_terminal(columns: int, received: list[bytes]) -> Iterator[int]:
    """The file descriptor of a terminal; what is written to it is collected."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def collect() -> None:
        try:
            while some := os.read(master, 65536):
                received.append(some)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=collect)
    reader.start()
    try:
        yield slave
    finally:
        os.close(slave)
        reader.join()
        os.close(master)


def run_in_terminal(monkeypatch, *arguments: str, columns: int = 80, term: str = "xterm-256color", **environment):
    """Run a command in this process with standard output and error on a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": term, "COLUMNS": str(columns), **environment}.items():
        monkeypatch.setenv(name, value)
    received: list[bytes] = []
    status = 0
    with (
        open_terminal(columns, received) as slave,
        monkeypatch.context() as patch,
        os.fdopen(os.dup(slave), "w") as out,
        os.fdopen(os.dup(slave), "w") as err,
    ):
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            cli.app(list(arguments))
        except SystemExit as end:
            status = int(end.code or 0)
    return Shown(b"".join(received).decode(), status)
