"""What the scores of one example belong to: a grid of patches, or the pieces of a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Patches of an image, row by row."""

    rows: int
    columns: int
    covers: tuple[int, int] | None = None  # height and width in pixels, where some are left over right and below

    def __len__(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class Pieces:
    """Tokens of a text (or the rows of a plain tensor), in the order the model sees them, padding included.

    spans[i] are the characters of `text` that piece i covers, None where it covers none (special tokens, padding,
    or no text to point into).
    """

    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    padding: tuple[bool, ...]
    spans: tuple[tuple[int, int] | None, ...]
    text: str | None = None

    def __len__(self) -> int:
        return len(self.pieces)


Tokens = Grid | Pieces
