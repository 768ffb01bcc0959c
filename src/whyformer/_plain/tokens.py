"""Tokens: what the scores of one example belong to, a grid of image patches or the pieces of a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Patches of an image, row by row."""

    rows: int
    columns: int
    covers: tuple[int, int] | None = None  # height, width in pixels, if pixels are left over at the right or bottom

    def __len__(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Pieces:
    """Tokens of a text (or rows of a plain tensor), in the order in which the model sees them, including padding.

    spans[i] is the (start, end) of piece i in `text`; None for special tokens, padding, or if there is no text.
    """

    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    padding: tuple[bool, ...]
    spans: tuple[tuple[int, int] | None, ...]
    text: str | None = None

    def __len__(self) -> int:
        return len(self.pieces)


Tokens = Grid | Pieces
