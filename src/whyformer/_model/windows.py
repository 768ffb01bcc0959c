"""Split a tokenized text that is longer than the model allows into overlapping windows.

    [CLS] a b c d e f g [SEP]      at most 6 tokens, 1 shared:
    [CLS] a b c d [SEP]   [CLS] d e f g [SEP]

Each window is a proper input: the special tokens around the text are in all of them. Of a pair, the first text is in
all windows and the second is split. The last window begins earlier than the step asks for, so that it is full too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whyformer._model.text import TokenizedText, capitalise
from whyformer.errors import InputError

SHARED = 4  # by default neighbouring windows share a quarter of their text


@dataclass(frozen=True)
class TextWindow:
    """A part of a text as an input of its own."""

    text: TokenizedText
    places: tuple[int, ...]  # of its tokens among the tokens of the whole text
    span: tuple[int, int]  # the characters that only some windows have; the whole text if it fits


def split_into_windows(one: TokenizedText, size: int | None, windows: bool | int, name: str) -> list[TextWindow]:
    """The windows of at most `size` tokens. windows: True, or how many tokens neighbouring windows share."""
    if size is None or len(one) <= size:
        return [TextWindow(one, tuple(range(len(one))), (0, len(one.text)))]
    start, end = find_last_text(one.special)
    room = size - start - (len(one) - end)
    if room < 1:
        raise InputError(
            f"{capitalise(name)} is {len(one)} tokens long; the model accepts at most {size}, and the tokens "
            f"that every window needs (special tokens, the first text of a pair) are {size - room}. Shorten the first "
            "text.",
            code="E_TXT_TOO_LONG",
        )
    shared = room // SHARED if windows is True else int(windows)
    if shared >= room:
        raise InputError(f"windows must be below {room}, the tokens of a window, got {shared}.", code="E_OPTION")
    last = end - room
    windows_of_text = [range(a, a + room) for a in (*range(start, last, room - shared), last)]
    return [take_window(one, own, [*range(start), *own, *range(end, len(one))]) for own in windows_of_text]


def find_last_text(special: Sequence[bool]) -> tuple[int, int]:
    """First place and last place + 1 of the last run of tokens that are not special."""
    end = max(place for place, is_special in enumerate(special) if not is_special) + 1
    start = max((place for place in range(end) if special[place]), default=-1) + 1
    return start, end


def take_window(one: TokenizedText, own: range, places: Sequence[int]) -> TextWindow:
    """The tokens at these places as an input, of which it alone has those in `own`."""
    spans = [span for span in one.spans[own.start : own.stop] if span is not None]
    return TextWindow(one.take(places), tuple(places), (spans[0][0], spans[-1][1]) if spans else (0, len(one.text)))


def check_windows(windows: Any) -> bool | int:
    """False, True, or how many tokens neighbouring windows share."""
    if isinstance(windows, bool):
        return windows
    if not isinstance(windows, int) or windows < 0:
        raise InputError(
            f"windows must be True, False or the number of tokens that neighbouring windows share, got {windows!r}.",
            code="E_OPTION",
        )
    return windows
