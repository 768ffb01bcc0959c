"""Join the pieces of a tokenizer into words, sentences or paragraphs.

A word is what stands between blanks. In scripts that are written without blanks (Chinese, Japanese, Thai, ...) every
token is a word of its own, but no letter is cut in two. A piece that is only a blank belongs to the word after it; one
with a line break stays alone. A sentence is made of words, a paragraph of sentences, so the
sums over each of them add up to the sum over all tokens. Every special token stands alone.

A sentence ends after . ! ? or the like, with the quotation marks and brackets that close there, if a blank follows and
the next letter is not a small one. The full stop of an abbreviation or of an initial ("Dr.", "J. Smith") ends none. The
marks of Chinese and Japanese end a sentence without a blank. A blank line ends a sentence and a paragraph.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache

import regex
import torch
from torch import Tensor

from whyformer._plain.tokens import Pieces, ScoredTokens
from whyformer.errors import InputError

WORD_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"sum": torch.sum, "max": torch.amax, "mean": torch.mean}
BLANK_MARKS = "▁Ġ "
WITHOUT_BLANKS = regex.compile(  # scripts written without blanks between words, and their punctuation
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\u3000-\u303f\uff01-\uffef]"
)


def join_words(tokens: ScoredTokens, scores: Tensor, reduce: str) -> tuple[Pieces, Tensor]:
    """The words of one example, and their scores: those of their pieces, reduced by `reduce`."""
    groups = group_by_unit(tokens, "words")
    return join_groups(tokens, groups), reduce_groups(scores, groups, reduce)


def group_by_unit(tokens: ScoredTokens, unit: str) -> list[list[int]]:
    """The places of the pieces of each word, sentence or paragraph of one example."""
    if not isinstance(tokens, Pieces):
        raise InputError(f"An image has no {unit}. Use .map() for its scores by row and column.")
    if tokens.text is None:
        raise InputError(f"The input was token ids, so there is no text to find {unit} in. Pass a text instead.")
    words = group_pieces(tokens)
    return words if unit == "words" else group_words(tokens, words, UNIT_STARTS[unit](tokens.text))


def join_groups(tokens: ScoredTokens, groups: Sequence[Sequence[int]]) -> Pieces:
    """Each group of pieces as one piece."""
    assert isinstance(tokens, Pieces) and tokens.text is not None
    spans = [find_group_span(tokens, group) for group in groups]
    return Pieces(
        pieces=tuple(
            tokens.text[slice(*span)] if span and not all(map(tokens.is_unknown, group)) else tokens.pieces[group[0]]
            for span, group in zip(spans, groups, strict=True)
        ),
        special=tuple(tokens.special[group[0]] for group in groups),
        padding=(False,) * len(groups),
        spans=tuple(spans),
        text=tokens.text,
        second=tokens.second,
        segment_names=tokens.segment_names,
    )


def reduce_groups(scores: Tensor, groups: Sequence[Sequence[int]], reduce: str) -> Tensor:
    """[group]: the scores [token] of each group as one number."""
    values = [WORD_REDUCTIONS[reduce](scores[list(group)]) for group in groups]
    return torch.stack(values) if values else scores[:0]


def group_pieces(tokens: Pieces) -> list[list[int]]:
    """The pieces of each word. Each special token is its own group; padding is left out."""
    groups: list[list[int]] = []
    blanks: list[int] = []  # blank pieces that wait for their word
    for i in (i for i in range(len(tokens)) if not tokens.padding[i]):
        if is_blank_piece(tokens, i):
            blanks.append(i)
        elif tokens.special[i]:
            add_trailing_blanks(tokens, groups, blanks)
            groups.append([i])
            blanks = []
        elif not blanks and groups and is_word_continuation(tokens, groups[-1], i):
            groups[-1].append(i)
        else:
            groups.append([*blanks, i])
            blanks = []
    add_trailing_blanks(tokens, groups, blanks)
    return groups


def add_trailing_blanks(tokens: Pieces, groups: list[list[int]], blanks: Sequence[int]) -> None:
    """Blanks that no word follows belong to the word before them; without one, they are a group."""
    if blanks and groups and not tokens.special[groups[-1][0]]:
        groups[-1].extend(blanks)
    elif blanks:
        groups.append(list(blanks))


@cache
def is_blank_mark(piece: str) -> bool:
    """Whether a piece is nothing but a tokenizer's mark for blanks."""
    return bool(piece) and not piece.strip(BLANK_MARKS)


def is_blank_piece(tokens: Pieces, i: int) -> bool:
    """Whether a piece covers blanks only, and no line break."""
    span = tokens.spans[i]
    if tokens.special[i] or tokens.text is None:
        return False
    if span is None:
        return is_blank_mark(tokens.pieces[i])
    covered = tokens.text[slice(*span)]
    return covered.isspace() and len(covered.splitlines()) == 1 and not covered.endswith(("\n", "\r"))


def is_word_continuation(tokens: Pieces, group: Sequence[int], i: int) -> bool:
    before, here = find_group_span(tokens, group), find_group_span(tokens, [i])
    if tokens.text is None or before is None or here is None or tokens.special[group[0]] or tokens.special[i]:
        return False
    if any(c.isspace() for c in tokens.text[before[1] : here[0]]):
        return False
    return here[0] < before[1] or not is_border_without_blank(tokens.text, before[1], here[0])


def is_border_without_blank(text: str, end: int, start: int) -> bool:
    """Whether a word ends here though no blank follows: next to a letter of a script without blanks."""
    beside = (text[end - 1], text[start])
    is_inside_letter = unicodedata.category(text[start]).startswith("M") or text[end - 1] == "\u200d"
    return not is_inside_letter and any(WITHOUT_BLANKS.match(character) for character in beside)


def group_words(tokens: Pieces, words: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[int]]:
    """Join the words of each sentence, given where sentences start. A special token ends one; line breaks do not."""
    groups: list[list[int]] = []
    last: int | None = None  # the sentence of the last group; None after a special token
    waiting: list[int] = []  # pieces without a place, before the first word
    for word in words:
        span = find_group_span(tokens, word)
        if tokens.special[word[0]]:
            groups += [waiting] if waiting else []
            groups.append(list(word))
            last, waiting = None, []
        elif span is None and last is None:
            waiting = [*waiting, *word]
        elif span is None or (last is not None and find_unit(starts, span[0]) == last):
            groups[-1].extend(word)
        else:
            groups.append([*waiting, *word])
            last, waiting = find_unit(starts, span[0]), []
    return groups + ([waiting] if waiting else [])


def find_unit(starts: Sequence[int], place: int) -> int:
    """The last unit that starts at or before this place."""
    return bisect_right(starts, place) - 1


def find_group_span(tokens: Pieces, group: Sequence[int]) -> tuple[int, int] | None:
    """The span of these pieces, without white space at its ends (some tokenizers include the space before a word)."""
    spans = [span for i in group if (span := tokens.spans[i])]
    if not spans or tokens.text is None:
        return None
    start, end = min(s for s, _ in spans), max(e for _, e in spans)
    covered = tokens.text[start:end]
    if not covered.strip():
        return None
    return start + len(covered) - len(covered.lstrip()), end - (len(covered) - len(covered.rstrip()))


def list_some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


# --- sentences --------------------------------------------------------------------------------------------------------


ABBREVIATIONS = frozenset(
    "mr mrs ms mx dr prof st sr jr rev hon gen col lt sgt capt mt vs cf al approx dept ltd corp bzw sra dra "
    "z.b d.h u.a e.g i.e a.k.a u.s u.k u.n p.ej".split()
)
BEFORE_NUMBERS = frozenset("no nos nr fig figs eq eqs vol p pp ch sec art".split())  # short forms if a digit follows
CLOSING = r"[\"'”’»›)\]}」』）】〕〉》｣]*"
WITH_BLANK = rf"(?P<stop>[.!?…؟۔।॥։።]+){CLOSING}\s+"
WITHOUT_BLANK = rf"[。！？｡．]+{CLOSING}\s*"
SENTENCE_END = regex.compile(rf"{WITHOUT_BLANK}|{WITH_BLANK}")
PARAGRAPH_END = regex.compile(r"\s*(?:\n[^\S\n]*\n|\u2029)\s*")  # a blank line
LONGER_THAN_SHORT_FORMS = 20  # letters to look back: a search from the start of a long text would take long
LAST_WORD = regex.compile(r"[\p{L}\p{M}.]+$")


def find_sentence_starts(text: str) -> list[int]:
    """The offsets at which sentences start, in order; the first is 0."""
    starts = find_paragraph_starts(text)
    for match in SENTENCE_END.finditer(text):
        if match["stop"] is None or not continues_sentence(text, match):
            starts.append(match.end())
    return drop_end(starts, text)


def continues_sentence(text: str, match: "regex.Match[str]") -> bool:
    """Whether the sentence goes on after this stop: a small letter follows, or the stop belongs to a short form."""
    if match.end() == len(text):
        return False
    if text[match.end()].islower():
        return True
    if match["stop"] != "." or match.group().rstrip() != ".":  # a quotation mark or bracket closes after it
        return False
    word = LAST_WORD.search(text, max(0, match.start() - LONGER_THAN_SHORT_FORMS), match.start())
    last = word.group().lower() if word is not None else ""
    if last in BEFORE_NUMBERS and text[match.end()].isdigit():
        return True
    return last in ABBREVIATIONS or (len(last) == 1 and text[match.start() - 1].isupper())


def find_paragraph_starts(text: str) -> list[int]:
    """The offsets at which paragraphs start, in order; the first is 0."""
    return drop_end([0, *(match.end() for match in PARAGRAPH_END.finditer(text))], text)


def drop_end(starts: list[int], text: str) -> list[int]:
    """Without the offset after the last letter, and without two that begin with the same letter."""
    first, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return [0, *sorted({start for start in starts if first < start < end})]


UNIT_STARTS = {"sentences": find_sentence_starts, "paragraphs": find_paragraph_starts}
