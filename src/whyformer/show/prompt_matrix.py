r"""The scores of every answer token, small enough for a page: [answer token, token] in at most a few megabytes.

A row is stored in steps of its largest magnitude,

    $$ s_j \approx q_j \max_i |s_i| / Q, \qquad q_j \in \{-Q, \dots, Q\}, $$

with Q = 127 (a byte) for tokens and 32767 (two bytes) for sums over cells. A matrix that would take more than its
budget keeps the entries of the largest magnitude of each row; the others are dropped. Sums over cells are taken before
anything is dropped.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

TOKEN_BUDGET = 4_500_000  # bytes before base64, which adds a third
CELL_BUDGET = 1_500_000


@dataclass(frozen=True)
class PackedRows:
    """Rows of numbers as base64 text; little-endian."""

    columns: int
    width: int  # bytes per value
    kept: int  # entries per row; equal to `columns` if nothing was dropped
    scales: list[float]  # the largest magnitude of each row
    values: list[str]
    place_width: int  # bytes per column number
    places: list[str] | None  # the columns of the entries; None if all are there

    def to_json(self) -> dict[str, Any]:
        """What prompt_page.js reads."""
        return {"width": self.width, "scales": self.scales, "values": self.values, "placeWidth": self.place_width,
                "places": self.places}  # fmt: skip


def pack_rows(rows: Tensor, *, width: int, budget: int) -> PackedRows:
    """Rows [row, column] in bytes, within the budget; NaN counts as 0."""
    count, columns = rows.shape
    place_width = 2 if columns <= 2**16 else 4
    kept = columns
    if count * columns * width > budget:
        kept = min(columns, max(1, budget // (count * (width + place_width))))
    scales, values, places = [], [], []
    for row in rows:
        dense = np.nan_to_num(row.double().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
        scale, steps = quantise_row(dense, width)
        if kept < columns:
            strongest = find_strongest(np.abs(dense), kept)
            steps = steps[strongest]
            places.append(encode_bytes(strongest.astype(f"<u{place_width}")))
        scales.append(scale)
        values.append(encode_bytes(steps))
    return PackedRows(columns, width, kept, scales, values, place_width, places if kept < columns else None)


def find_strongest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest magnitudes, in order; of equal ones the first."""
    last = np.partition(magnitudes, -count)[-count]
    above = np.flatnonzero(magnitudes > last)
    return np.sort(np.concatenate([above, np.flatnonzero(magnitudes == last)[: count - len(above)]]))


def quantise_row(row: np.ndarray, width: int) -> tuple[float, np.ndarray]:
    """The largest magnitude, and the row in steps of it."""
    scale = float(np.abs(row).max(initial=0.0))
    levels = 2 ** (8 * width - 1) - 1
    shares = row / scale if scale > 0 else np.zeros_like(row)
    return scale, np.rint(shares * levels).astype(f"<i{width}")


def encode_bytes(values: np.ndarray) -> str:
    return b64encode(values.tobytes()).decode("ascii")
