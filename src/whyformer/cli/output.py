"""Standard output and standard error, which may be closed, full or a pipe whose reader has ended."""

import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from whyformer._plain.progress import STATUS_LINE, is_terminal
from whyformer.cli.shared_options import OPENS
from whyformer.errors import OutputError, ResourceError, WhyformerError
from whyformer.show.visible import make_lines_visible, make_visible

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def prepare_streams() -> None:
    """Escape what the terminal cannot show. A closed stream is discarded: a file must not get its number."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_text(text: object) -> None:
    """Print on standard output. Control characters of file names, labels and inputs are spelled out."""
    print_rendered(make_lines_visible(str(text)))


def print_prose(text: object) -> None:
    """The same for sentences, which are wrapped to the width of a terminal."""
    from whyformer.show.terminal import Screen, wrap_lines

    visible, screen = make_lines_visible(str(text)), Screen.from_terminal()
    print_rendered(visible if screen is None else wrap_lines(visible, screen.width))


def print_saved(*files: Path) -> None:
    """Name those that were written: on standard error, so that standard output holds the result alone."""
    for file in files:
        if file.exists():
            print_to_stderr(f"saved {make_visible(str(file))}")
    there = [file for file in files if file.exists()]
    if there and OPENS.get():
        # Open a page, or a folder if there is no page.
        open_address(next((file for file in there if file.suffix == ".html"), there[0]).resolve().as_uri())


def open_address(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        print_to_stderr(f"no browser was found; open {address}")


def print_rendered(text: str) -> None:
    """Print what `show.terminal.render_parts` has drawn, or a result as text: it is escaped, and may have colours."""
    with STATUS_LINE.make_room(), convert_write_errors():
        print(text, flush=True)


@contextmanager
def convert_write_errors() -> Iterator[None]:
    """Report standard output that cannot be written; a pipe whose reader has ended (`| head`) is no error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise make_stream_error(error) from None


def make_stream_error(error: OSError) -> WhyformerError:
    """The error for standard output, or another file, that cannot be written."""
    reason = (error.strerror or str(error)).lower()
    where = "standard output" if error.filename is None else repr(error.filename)
    if error.errno in FULL:
        return ResourceError(f"Cannot write to {where}: {reason}. Free some space.", code="E_DISK_FULL")
    return OutputError(f"Cannot write to {where}: {reason}.")


def wrap_for_terminal(line: str) -> str:
    """The line, broken between words if standard error is a terminal, which would break them anywhere."""
    try:
        if not sys.stderr.isatty():
            return line
    except (ValueError, AttributeError):  # closed
        return line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, max(width, 20), break_long_words=False, break_on_hyphens=False)


def print_to_stderr(text: str) -> None:
    """Print on standard error; there is nowhere to say that this failed."""
    try:
        with STATUS_LINE.make_room():
            print(text, file=sys.stderr, flush=True)
    except OSError:
        discard_rest(sys.stderr)


def print_to_terminal(text: str) -> None:
    """Print on standard error if somebody watches it."""
    if is_terminal():
        print_to_stderr(wrap_for_terminal(text))


def is_writable(stream: IO[str]) -> bool:
    """Whether a stream can be written to, or has no file descriptor that could tell."""
    try:
        os.write(stream.fileno(), b"")
    except ValueError:  # also io.UnsupportedOperation
        return True
    except OSError:
        return False
    return True


def discard_rest(stream: IO[str]) -> None:
    """Send what is still buffered to nowhere, or Python would complain about it at exit."""
    with suppress(OSError, ValueError):  # a stream without a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
