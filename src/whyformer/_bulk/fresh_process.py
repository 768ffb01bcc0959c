"""Start a fresh interpreter of Python that runs a module of this package, and talk to it over pairs of sockets.

Nothing is inherited from the caller, whose script is not run again: no `if __name__ == "__main__"` is needed.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from whyformer._plain.progress import SWITCH

PACKAGE_ROOT = Path(__file__).parents[2]
# Ctrl-C reaches the whole group; the caller decides. Before the imports, which take seconds.
IGNORE_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


def start_process(
    module: str,
    program: str,
    *,
    connections: int = 1,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> "tuple[subprocess.Popen[bytes], list[Connection]]":
    """The process, and our ends of the connections. It calls `program`(*its ends, *descriptors)."""
    with ExitStack() as theirs:
        pairs = [socket.socketpair() for _ in range(connections)]
        passed = [theirs.enter_context(end).fileno() for _, end in pairs] + list(descriptors)
        ours = [Connection(end.detach()) for end, _ in pairs]
        paths = [str(PACKAGE_ROOT), *(path for path in sys.path if path)]
        call = f"from {module} import {program}; {program}({', '.join(map(str, passed))})"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{IGNORE_INTERRUPTS}; {call}"],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            env={**os.environ, SWITCH: "0", "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        )
    return process, ours
