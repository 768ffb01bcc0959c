"""Drops what compiled code prints, such as libtiff about a damaged file, which no setting of Pillow keeps it from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from whyformer._plain.shared_context import SharedContext

STDERR = 2


@contextmanager
def drop_lines() -> Iterator[None]:
    """Standard error leads nowhere meanwhile, for the whole process; nothing is changed if it is closed."""
    try:
        kept = os.dup(STDERR)
    except OSError:
        kept = None
    try:
        if kept is not None:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), STDERR)
        yield
    finally:
        if kept is not None:
            os.dup2(kept, STDERR)
            os.close(kept)


NO_NATIVE_LINES = SharedContext(drop_lines)
