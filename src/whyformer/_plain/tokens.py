"""Tokens: what the scores of one example belong to, a grid of image patches or the pieces of a text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

PAIR = ("first text", "second text")
STREAMS = ("source", "written so far")  # what an encoder and a decoder read


@dataclass(frozen=True)
class Grid:
    """Patches of an image, row by row."""

    rows: int
    columns: int
    covers: tuple[int, int] | None = None  # height, width in pixels, if pixels are left over at the right or bottom

    def __len__(self) -> int:
        return self.rows * self.columns

    @property
    def special(self) -> tuple[bool, ...]:
        """Which of them are special tokens: none, a class token is no patch."""
        return (False,) * len(self)


@dataclass(frozen=True)
class NamedTokens:
    """A named part of a prompt: a message, a document, the answer.

    It consists of the tokens from `start` up to and without `stop`.
    """

    name: str
    kind: str
    start: int
    stop: int


@dataclass(frozen=True)
class Stream:
    """One of several sequences that a model reads, by its place in the joined one: the source and what was written so
    far, an image and the words about it. It is `start` up to and without `stop`, for all examples of a batch."""

    name: str
    start: int
    stop: int
    grid: Grid | None = None  # how the patches of an image lie


@dataclass(frozen=True, repr=False)
class Pieces:
    """Tokens of a text (or rows of a plain tensor), in the order in which the model sees them, including padding.

    spans[i] is the (start, end) of piece i in `text`; None for special tokens, padding, or if there is no text.
    Of a pair of texts, `text` is both of them joined by a line break, and `second` is where the second one begins.
    A prompt has `regions`, in order; its answer, if it has one, is the last and of kind "answer".
    """

    pieces: tuple[str, ...]
    special: tuple[bool, ...]
    padding: tuple[bool, ...]
    spans: tuple[tuple[int, int] | None, ...]
    text: str | None = None
    second: int | None = None
    regions: tuple[NamedTokens, ...] = ()
    segment_names: tuple[str, str] = PAIR  # what the two texts of a pair are called

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        shown = " ".join(self.pieces[:6] if self.text is None else [self.text[:40]])
        return f"<Pieces: {len(self)} tokens of {shown!r}>"

    @property
    def segments(self) -> tuple[int | None, ...]:
        """The text of a pair that each piece belongs to, 0 or 1; None for padding, and for all pieces of a single text.

        A special token belongs to the text before it.
        """
        if self.second is None:
            return (None,) * len(self)
        segments: list[int | None] = []
        now = 0
        for span, is_padding in zip(self.spans, self.padding, strict=True):
            now = now if span is None else int(span[0] >= self.second)
            segments.append(None if is_padding else now)
        return tuple(segments)

    def is_unknown(self, i: int) -> bool:
        """Whether the tokenizer read this part of the text as its token for what it does not know, such as [UNK]."""
        span, name = self.spans[i], self.pieces[i]
        covered = "" if span is None or self.text is None else self.text[slice(*span)]
        return name.strip("[]<|>").casefold() in ("unk", "unknown") and bool(covered.strip()) and covered != name

    def find_place(self, i: int) -> tuple[int, int] | None:
        """The (start, end) of piece i, counted from the beginning of its own text."""
        span = self.spans[i]
        if span is None or self.second is None or span[0] < self.second:
            return span
        return span[0] - self.second, span[1] - self.second


ScoredTokens = Grid | Pieces
AnyPieces = TypeVar("AnyPieces", bound=Pieces)


def take_pieces(tokens: AnyPieces, at: Sequence[int]) -> AnyPieces:
    """The pieces at these positions, of the same text."""
    return replace(
        tokens,
        pieces=tuple(tokens.pieces[i] for i in at),
        special=tuple(tokens.special[i] for i in at),
        padding=tuple(tokens.padding[i] for i in at),
        spans=tuple(tokens.spans[i] for i in at),
    )


def pad_pieces(tokens: AnyPieces, length: int, piece: str = "", *, is_left: bool = False) -> AnyPieces:
    """The pieces with padding after them, or before them, up to this length."""
    missing = length - len(tokens)
    before, after = (missing, 0) if is_left else (0, missing)
    fills = {"pieces": piece, "special": False, "padding": True, "spans": None}
    return replace(tokens, **{n: (one,) * before + getattr(tokens, n) + (one,) * after for n, one in fills.items()})


def name_pair(text: str, second: int) -> str:
    """A pair of texts in one line, from both joined by a line break and where the second one begins."""
    return f"{text[: second - 1]} / {text[second:]}"


def number_repeated(names: Sequence[str], pattern: str = "{} {}") -> list[str]:
    """The names; those that occur more than once with a number behind them, so that no two are the same."""
    counts, seen, numbered = Counter(names), Counter[str](), []
    for name in names:
        seen[name] += 1
        numbered.append(pattern.format(name, seen[name]) if counts[name] > 1 else name)
    return numbered
