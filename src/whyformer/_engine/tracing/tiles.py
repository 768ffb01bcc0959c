"""Query tiles: attention a few rows at a time, so that no matrix of all tokens by all tokens is whole.

    with why.engine(tiles=64): ...         always 64 queries at a time
    with why.engine(tiles=False): ...      every matrix whole, and every step of attention by its own rule

By default, attention whose matrices [batch head query key] take more than `TILED_FROM` bytes is computed in tiles of
about `TILE_BYTES`. Rows of attention do not depend on each other, so tiles change only the order in which sums over
queries are added up.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch

from whyformer.errors import ResourceError

TILED_FROM = 2**28  # 256 MiB: 2,365 tokens through 12 heads in float32
TILE_BYTES = 2**26  # 64 MiB; a rule holds about ten tensors of this size


@dataclass(frozen=True)
class TileSetting:
    """How many queries are computed at a time: rows=0 decides by size. is_on=False: every matrix is whole."""

    is_on: bool = True
    rows: int = 0

    def choose_rows(self, shape: tuple[int, ...], itemsize: int) -> int:
        """How many queries at a time, for matrices of this shape [... query key]; 0: all of them, whole."""
        if not self.is_on:
            return 0
        queries = shape[-2]
        if self.rows:
            return self.rows if self.rows < queries else 0
        size = itemsize
        for length in shape:
            size *= length
        return max(1, min(queries, TILE_BYTES * queries // size)) if size > TILED_FROM else 0


BY_SIZE = TileSetting()
current_setting: ContextVar[TileSetting] = ContextVar("attention_tiles", default=BY_SIZE)


def iterate_tiles(queries: int, rows: int) -> Iterator[slice]:
    """Slices of the queries, `rows` at a time; all at once if rows is 0."""
    step = rows or max(queries, 1)
    for first in range(0, queries, step):
        yield slice(first, min(first + step, queries))


def require_memory(size: int, device: torch.device, what: str, remedy: str) -> None:
    """Refuse what needs `size` bytes if the device does not have them; nothing if that is not known."""
    free = find_free_memory(device)
    if free is not None and size > free:
        raise ResourceError(f"{what}, takes {size / 2**30:,.1f} GiB; {free / 2**30:,.1f} GiB are free. {remedy}")


def find_free_memory(device: torch.device) -> int | None:
    """Bytes that can be had on this device; None if that is not known."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
        find_fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)  # since torch 2.8
        lent = int(find_fraction(device) * total)
        return min(free, lent - reserved) + reserved - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = (line for line in lines if line.startswith("MemAvailable:"))
    return next((int(line.split()[1]) * 1024 for line in available), None) if device.type == "cpu" else None
