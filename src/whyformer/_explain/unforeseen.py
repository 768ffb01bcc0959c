"""Exceptions of whyformer itself while it follows a model: reported as a bug of whyformer, with the cause.

What the user's own module, target function or method raises passes through unchanged. Running out of memory is a
ResourceError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType

import torch

from whyformer._model import Model, unwrap
from whyformer._plain.failure import make_memory_error
from whyformer.errors import UnsupportedModel, WhyformerError

CALLED_BY_US = {"torch", "numpy", "contextlib", "functools"}  # their exceptions are those of whoever called them


@contextmanager
def report_own_bugs(model: Model) -> Iterator[None]:
    """Turn an exception of whyformer's own code into an UnsupportedModel that names it."""
    try:
        yield
    except (WhyformerError, OSError):
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise make_memory_error(error) from error
    except Exception as error:
        line = find_own_place(error.__traceback__)
        if line is None:
            raise
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise UnsupportedModel(
            f"whyformer failed on {type(unwrap(model.module)).__name__} at {line}: {type(error).__name__}: "
            f"{first[:200]} This is a bug in whyformer; please report it with the traceback.",
            code="E_INTERNAL",
        ) from error


def find_own_place(traceback: TracebackType | None) -> str | None:
    """The file and line of whyformer that raised; None if the code of somebody else did."""
    frames = [(str(frame.f_globals.get("__name__", "")), line) for frame, line in walk_tb(traceback)]
    last = next((frame for frame in reversed(frames) if frame[0].partition(".")[0] not in CALLED_BY_US), None)
    if last is None or last[0].partition(".")[0] != "whyformer":
        return None
    return f"{last[0]}:{last[1]}"
