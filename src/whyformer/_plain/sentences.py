"""Where the sentences and the paragraphs of a text start.

A sentence ends after . ! ? or the like, with the quotation marks and brackets that close there, if a blank follows and
the next letter is not a small one. The full stop of an abbreviation or of an initial ("Dr.", "J. Smith") ends none. The
marks of Chinese and Japanese end a sentence without a blank. A blank line ends a sentence and a paragraph.
"""

import regex

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
