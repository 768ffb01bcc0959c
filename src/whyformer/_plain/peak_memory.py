"""How much memory a call needs at most, on a GPU or on the processor."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch


def measure_peak_memory(run: Callable[[], None], device: torch.device, *, collects: bool = True) -> int | None:
    """The most memory (bytes) that is in use while `run` runs, above what was in use before; None if unknown.

    collects: collect garbage first, which takes longer than a small model.
    """
    if collects:
        free_memory()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # Give freed memory back to the system, or `run` would reuse it and seem to need none. Linux only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak
        current = read_status("VmRSS")
        run()
        peak = read_status("VmHWM")
        return None if current is None or peak is None else max(0, peak - current)
    return None


def read_status(name: str) -> int | None:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


@contextmanager
def without_collection() -> Iterator[None]:
    """Inside, Python collects no garbage: with torch loaded that takes a quarter of a second."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
