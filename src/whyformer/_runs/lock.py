"""A lock on the folder of a run: only one process writes to it at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whyformer.errors import InputError

LOCK_FILE = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, lock it, and remove temporary files that a killed process left behind.

    The operating system releases the lock when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK_FILE, "a+")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"Cannot write to the folder {folder}: {(error.strerror or str(error)).lower()}.") from None
    with file:
        try:
            lock_file(file)
        except OSError:
            file.seek(0)
            owner = file.read().strip()
            process = f"Process {owner}" if owner else "Another process"
            raise InputError(f"{process} is writing to {folder}. Wait until it ends, or use another folder.") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for leftover in (*folder.glob(".*.tmp"), *folder.glob("rows/.*.tmp")):
            leftover.unlink()
        yield


def lock_file(file: IO[str]) -> None:
    """Lock the file, or raise OSError. Windows has no such locks; there, nothing is locked."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
