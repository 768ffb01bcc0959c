"""Where each token is in the text: its (start, end) in characters, or None where it covers no character.

A fast tokenizer reports offsets. They are corrected in three places:

* A piece that is only a mark for a blank ("Ġ", "▁") covers the blanks that it stands for. Where the tokenizer put the
  mark before the text, it covers nothing, though some tokenizers report the first letter.
* Marks that belong to the letter before them and that the normaliser dropped or merged (accents, joiners, variation
  selectors) belong to the piece that ends with that letter.
* The offsets of the second text of a pair count from its own start, and are shifted.

A slow tokenizer reports none. Its pieces are found in the text one after the other, compared without case, accents
and width; a piece that is not found there has no span, unless it is the only one for the words between its neighbours.

Tokens without a text, as a model generates them, are decoded one after the other; each covers what it adds.
"""

import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress

from whyformer._model.encoded import OptionalSpan
from whyformer._model.preprocessors import Tokenizer
from whyformer._plain.words import is_blank_mark

CONTINUATION_MARKS = ("##", "@@")  # before a piece that continues a word (BERT); after one that is continued (fastBPE)
WORD_END = "</w>"  # after the last piece of a word (GPT, XLM)
JOINERS = "\u200d\ufe0e\ufe0f"  # zero-width joiner, variation selectors
MAX_RUN = 8  # pieces that may spell one letter together, as bytes
MAX_SKIP = 400  # characters that unknown pieces may stand for
UNFINISHED = "\ufffd"  # what half a character decodes to


def correct_offsets(
    text: str, pieces: Sequence[str], offsets: Sequence[tuple[int, int]], special: Sequence[bool], second: int = 0
) -> tuple[OptionalSpan, ...]:
    """The spans of the pieces of a fast tokenizer, from the offsets it reports. `second`: where the second text starts.

    Trimmed offsets of blanks are empty, and not always at their place; a blank begins where the piece before it ended.
    """
    spans: list[OptionalSpan] = []
    at = 0  # the end of what is covered
    for piece, (start, end), is_special in zip(pieces, offsets, special, strict=True):
        if is_special:
            spans.append(None)
            continue
        at = max(at, second) if start >= second else at
        if is_blank_mark(piece) and text[start:end].strip():  # a mark before the text, though a letter is reported
            end = start
        elif is_blank_mark(piece) and start == end:
            start, end = find_blanks(text, at, len(piece))
        spans.append((start, end) if start < end else None)
        at = max(at, end)
    return extend_over_marks(text, spans)


def find_blanks(text: str, at: int, count: int) -> tuple[int, int]:
    """The span of up to `count` blanks that begin at this place; empty if there is none."""
    while at < len(text) and is_mark(text[at]):  # what the normaliser dropped
        at += 1
    end = at
    while end < min(len(text), at + count) and text[end].isspace():
        end += 1
    return at, end


def extend_over_marks(text: str, spans: Sequence[OptionalSpan]) -> tuple[OptionalSpan, ...]:
    """Spans that end in a letter also cover the marks on it that no piece covers."""
    covered = {place for span in spans if span is not None for place in range(*span)}

    def skip_marks(end: int) -> int:
        while end < len(text) and end not in covered and is_mark(text[end]):
            end += 1
        return end

    return tuple(None if span is None else (span[0], skip_marks(span[1])) for span in spans)


def is_mark(character: str) -> bool:
    return character in JOINERS or unicodedata.category(character).startswith("M")


# --- tokenizers without offsets ---------------------------------------------------------------------------------------


def align_pieces(
    text: str, pieces: Sequence[str], special: Sequence[bool], join_pieces: Callable[[list[str]], str] | None = None
) -> tuple[OptionalSpan, ...]:
    """The spans of the pieces of a slow tokenizer, found one after the other.

    join_pieces: the text of several pieces, for pieces that are bytes.
    """
    folded = FoldedText(text)
    spans: list[OptionalSpan] = [None] * len(pieces)

    def find_run(i: int, at: int, is_next: bool) -> tuple[int, int, int] | None:
        """How many pieces from i on are found together, and where; more than one only right at the current place."""
        if (place := folded.find(strip_piece_marks(pieces[i]), at, is_next)) is not None:
            return (1, *place)
        if join_pieces is None or not is_next:
            return None
        for count in range(2, MAX_RUN + 1):
            if i + count > len(pieces) or any(special[i : i + count]):
                return None
            with suppress(Exception):  # half a letter: what the tokenizer's own code raises is unknown
                spelled = join_pieces(list(pieces[i : i + count]))
                if UNFINISHED not in spelled and (place := folded.find(spelled, at, True)) is not None:
                    return (count, *place)
        return None

    at, i = 0, 0
    missed: list[int] = []  # pieces since the last that was found
    while i < len(pieces):
        if special[i] or is_blank_mark(pieces[i]):
            i += 1
            continue
        found = find_run(i, at, not missed)
        if found is None:
            missed.append(i)
            i += 1
            continue
        count, start, end = found
        if len(missed) == 1:
            spans[missed[0]] = folded.locate_words(at, start)
        missed = []
        spans[i : i + count] = [folded.locate(start, end)] * count
        at, i = end, i + count
    if len(missed) == 1:
        spans[missed[0]] = folded.locate_words(at, len(folded.letters))
    return extend_over_marks(text, spans)


def strip_piece_marks(piece: str) -> str:
    """The letters of a piece, without the marks that tokenizers add."""
    before, after = CONTINUATION_MARKS
    piece = piece.removeprefix(before) if piece != before else piece
    piece = piece.removesuffix(WORD_END).removesuffix(after) if piece not in (WORD_END, after) else piece
    return piece.lstrip("▁Ġ") or piece


class FoldedText:
    """A text without case, accents, width and blanks, that knows where each of its letters came from."""

    def __init__(self, text: str) -> None:
        self.text = text
        letters = [(letter, i) for i, character in enumerate(text) for letter in fold_letters(character)]
        self.letters = "".join(letter for letter, _ in letters)
        self.places = [i for _, i in letters]

    def find(self, piece: str, at: int, is_next: bool) -> tuple[int, int] | None:
        """The first and the last letter + 1 of a piece: exactly here, or, after pieces that were not found, ahead."""
        wanted = fold_letters(piece)
        if not wanted:
            return None
        start = at if self.letters.startswith(wanted, at) else -1
        if start < 0 and not is_next:
            start = self.letters.find(wanted, at, at + MAX_SKIP)
        return None if start < 0 else (start, start + len(wanted))

    def locate(self, start: int, end: int) -> OptionalSpan:
        """The span in the text of letters start to end."""
        return (self.places[start], self.places[end - 1] + 1) if start < end else None

    def locate_words(self, start: int, end: int) -> OptionalSpan:
        """The span of these letters, if they are one word: without blanks in between."""
        span = self.locate(start, end)
        return span if span is not None and not any(c.isspace() for c in self.text[slice(*span)]) else None


def fold_letters(text: str) -> str:
    """Letters without case, accents, width and blanks: what most normalisers agree on."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = "".join(c for c in decomposed if not is_mark(c) and not c.isspace())
    return kept or "".join(c for c in text if not c.isspace() and not is_mark(c))


# --- tokens without a text --------------------------------------------------------------------------------------------


def decode_with_spans(
    tokenizer: Tokenizer, ids: Sequence[int], first: int = 0
) -> tuple[str, list[tuple[int, int] | None]]:
    """The text of the ids from `first` on, and the characters that each of them covers.

    The bytes of one character share it. Each token is decoded after the few before it, since some decoders drop the
    blank before a text: the time is linear in the number of tokens.
    """

    def decode(begin: int, end: int) -> str:
        return tokenizer.decode(list(ids[begin:end]), clean_up_tokenization_spaces=False)

    spans: list[tuple[int, int] | None] = []
    parts: list[str] = []
    at, read, context = 0, first, max(0, first - MAX_RUN)  # characters so far, the next token, where decoding begins
    for end in range(first + 1, len(ids) + 1):
        known, text = decode(context, read), decode(context, end)
        is_whole = len(text) > len(known) and not text.endswith(UNFINISHED)
        if not is_whole and end - read < MAX_RUN and end < len(ids):
            continue
        added = text[len(known) :]
        spans += [(at, at + len(added)) if added else None] * (end - read)
        parts.append(added)
        at, context, read = at + len(added), read, end
    return "".join(parts), spans
