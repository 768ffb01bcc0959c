"""The windows that a long text was explained in, as they are kept in the details of an explanation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOWS = "windows"  # [batch window 4]: start, end, answer, score of each; -1 in the rows of windows that do not exist
COUNTS = "windows of tokens"  # [batch token]: in how many windows each token is


@dataclass(frozen=True)
class Window:
    """One window of a long text."""

    span: tuple[int, int]  # the characters of the text that it shows the model
    answer: int  # the class that the model predicts for this window alone; -1 without classes
    score: float  # the explained logit in this window


def to_window_details(windows: Sequence[Sequence[Window]], counts: Sequence[Tensor]) -> dict[str, Tensor]:
    """The details of an explanation for the windows of each example, and for the windows of each token."""
    most = max(map(len, windows), default=0)
    table = torch.full((len(windows), most, 4), -1.0, dtype=torch.float64)
    for rows, own in zip(table, windows, strict=True):
        for row, window in zip(rows, own, strict=False):
            row[:] = torch.tensor([*window.span, window.answer, window.score], dtype=torch.float64)
    longest = max(map(len, counts), default=0)
    return {WINDOWS: table, COUNTS: torch.stack([torch.nn.functional.pad(c, (0, longest - len(c))) for c in counts])}


def read_window_details(details: Mapping[str, Tensor]) -> tuple[tuple[Window, ...], ...] | None:
    """The windows of each example; None if the explanation was not made in windows."""
    if WINDOWS not in details:
        return None
    rows = [[row for row in own if row[0] >= 0] for own in details[WINDOWS].tolist()]
    return tuple(tuple(Window((int(a), int(b)), int(answer), score) for a, b, answer, score in own) for own in rows)
