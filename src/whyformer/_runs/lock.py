"""A lock on the folder of a run: only one process writes to it at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from whyformer._plain import archive
from whyformer.errors import OutputError, WhyformerError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, lock it, and remove temporary files that a killed process left behind.

    The operating system releases the lock when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+")  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise make_folder_error(folder, error) from None
    with file:
        try:
            lock_file(file)
        except OSError:
            file.seek(0)
            owner = file.read().strip()
            process = f"Process {owner}" if owner else "Another process"
            raise OutputError(
                f"{process} is writing to {folder}. Wait until it ends, or use another folder.", code="E_OUT_LOCKED"
            ) from None
        try:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            for leftover in (*folder.glob(".*.tmp"), *folder.glob("rows/.*.tmp"), *folder.glob("parts/.*.tmp")):
                leftover.unlink()
        except OSError as error:
            with suppress(OSError):  # closing writes what is left in the buffer, and fails again
                file.close()
            raise make_folder_error(folder, error) from None
        yield


def make_folder_error(folder: Path, error: OSError | ValueError) -> WhyformerError:
    """The error to raise where the folder of a run cannot be written to."""
    if isinstance(error, OSError) and error.errno in archive.DISK_FULL:
        return archive.make_write_error(folder, error)
    return OutputError(f"Cannot write to the folder {folder}: {archive.describe_os_error(error).lower()}.")


def lock_file(file: IO[str]) -> None:
    """Lock the file, or raise OSError. Windows has no such locks; there, nothing is locked."""
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
