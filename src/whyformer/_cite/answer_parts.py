"""The sentences of an answer: which are claims, what they cite by a mark, and what they quote.

A sentence is no claim if it is unfinished (the last of several, without a stop), an abstention ("I do not know", "the
passages do not say") or a greeting ("Sure!", "I hope this helps."). These are told by their words, in English and, for
abstentions, in German, French and Spanish too. A mark such as "[1]" after a stop belongs to the sentence before it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from whyformer._model.prompt import Prompt, Region
from whyformer._plain.words import find_sentence_starts
from whyformer.results.citations import Claim, Finding, Mark, Quotation, SentenceKind

NUMBERS = r"\d{1,3}(?:\s*(?:,|;|-|–|and|&)\s*\d{1,3})*"
MARK = re.compile(
    rf"\[\^?(?:(?:source|passage|document|doc|ref)s?\s*)?({NUMBERS})\]"
    rf"|\((?:see\s+)?(?:source|passage|document|doc|ref|reference)s?\.?\s*({NUMBERS})\)",
    re.IGNORECASE,
)
LEADING_MARKS = re.compile(rf"\s*(?:(?:{MARK.pattern})[\s.,;]*)+", re.IGNORECASE)
LABEL = re.compile(r"\W{0,3}(?:(?:source|passage|document|doc|context)\s*)?[\[(#]?(\d{1,3})[\]).:]", re.IGNORECASE)
LABEL_BEFORE = re.compile(
    r"(?:\[\^?(\d{1,3})\]|(?:source|passage|document|doc|id|index)\W{0,4}(\d{1,3}))[^\w\n]*\n?[^\w\n]*$", re.IGNORECASE
)
QUOTED = re.compile(r"“([^”]+)”|„([^“”]+)[“”]|«([^»]+)»|\"([^\"]+)\"")
SHORTEST_QUOTATION = 2  # words
STOPPED = re.compile(r"[.!?…。！？؟।][\s\"'”’»)\]*_]*$")
LIST_ITEM = re.compile(r"(?:^|\n)\s*(?:[-*•]|\d{1,3}[.)])\s+\S[^\n]*$")
TEXTS = r"(?:(?:passage|document|text|source|article|paragraph|excerpt|snippet|result)s?|context|information)"
ABSTAINS = re.compile(
    r"\b(?:i|we)(?:'m| am| are|'re)? (?:(?:do not|don't|don’t) (?:know|have (?:enough |any |the )?\w*\s?information)"
    r"|(?:cannot|can't|can not|could not|couldn't) (?:find|answer|tell|say|determine)|(?:am |are )?(?:not sure|unsure|"
    r"unable to|not able to)|(?:sorry,? )?(?:but )?i (?:cannot|can't))"
    rf"|\b(?:the |these |this |given |provided |none of the )*{TEXTS}(?: \w+)? (?:do(?:es)? not|do(?:es)?n't|did not|"
    r"never|provides? no|contains? no|gives? no|states? no|mentions? no|say nothing|says nothing)\b"
    r"|\bnot (?:stated|mentioned|specified|provided|given|known|available|answered)(?: \w+)* (?:in|by) (?:the|this)\b"
    rf"|\bthere is (?:no|not enough|insufficient) (?:\w+ )?information\b"
    r"|\b(?:cannot|can't|could not) be (?:determined|answered|known)\b|^\W*(?:unknown|unanswerable|n/a|no answer|"
    r"not (?:stated|known|specified|mentioned|given|available))\W*$"
    r"|\b(?:ich weiß (?:es )?nicht|das weiß ich nicht|je ne sais pas|no lo sé|no sé)\b",
    re.IGNORECASE,
)
GREETS = re.compile(
    r"\W*(?:(?:hello|hi|hey|thanks?|thank you)\b[^.!?:]{0,30}"
    r"|(?:sure|certainly|of course|absolutely|(?:great|good) question|you'?re welcome|no problem|okay|ok|happy to help)"
    r"(?:\s*[,.!:;–-]+\s*(?:here|happy|glad|let me|i'?(?:d| can| will|'ll)\b)[^.!?:]{0,60})?"
    r"|(?:here(?:'s| is| are)|below is)\b[^.!?]{0,60}:|(?:i hope|hope) (?:this|that|it) helps\b.*"
    r"|(?:please )?let me know\b.*|feel free to\b.*|(?:is there|do you have) any(?:thing)?\b.*\?)\W*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class AnswerPart:
    """A sentence of an answer, or all of it."""

    text: str
    kind: SentenceKind
    tokens: tuple[int, ...]  # counted from the first of the answer


def divide_answer(prompt: Prompt) -> list[AnswerPart]:
    """The sentences that have tokens; a token belongs to the sentence that it ends in, and those of marks to none."""
    text, start = prompt.answer_text, prompt.answer_start
    ends = [None if (span := prompt.pieces.spans[place]) is None else span[1] - start for place in prompt.answer]
    marks = {place for found in MARK.finditer(text) for place in range(found.start() + 1, found.end() + 1)}
    parts = []
    for first, last in split_sentences(text):
        own = [n for n, end in enumerate(ends) if end is not None and first < end <= last]
        tokens = tuple(n for n in own if ends[n] not in marks) or tuple(own)
        if tokens and text[first:last].strip():
            parts.append(AnswerPart(text[first:last].strip(), find_sentence_kind(text, first, last), tokens))
    return parts or [AnswerPart(text.strip(), "claim", tuple(range(len(ends))))]


def split_sentences(text: str) -> list[tuple[int, int]]:
    """From the first character up to and without the last one of each."""
    starts: list[int] = []
    for start, stop in zip(own := find_sentence_starts(text), [*own[1:], len(text)], strict=True):
        marks = LEADING_MARKS.match(text, start, stop) if starts else None
        start = marks.end() if marks else start
        previous = text[starts[-1] : start] if starts else ""
        if start < stop and (not starts or any(letter.isalpha() for letter in previous)):
            starts.append(start)
    return list(pairwise([*starts, len(text)]))  # none in an empty text


def find_sentence_kind(text: str, first: int, last: int) -> SentenceKind:
    sentence = text[first:last].strip()
    if ABSTAINS.search(sentence):
        return "abstention"
    if GREETS.match(sentence):
        return "greeting"
    bare = MARK.sub("", sentence).rstrip()
    is_cut = first > 0 and last == len(text) and not STOPPED.search(bare) and not LIST_ITEM.search(text)
    return "unfinished" if is_cut else "claim"


# --- marks ------------------------------------------------------------------------------------------------------------


def number_labels(prompt: Prompt, sources: Sequence[Region]) -> dict[int, str]:
    """The name of the source of each number: the numbers that are written at the sources, else their order."""
    written = [number for one in sources if (number := find_label(prompt, one)) is not None]
    is_numbered = len(written) == len(sources) == len(set(written))
    numbers = written if is_numbered else range(1, len(sources) + 1)
    return {number: one.name for number, one in zip(numbers, sources, strict=True)}


def find_label(prompt: Prompt, source: Region) -> int | None:
    if (found := LABEL.match(source.text)) is not None:
        return int(found[1])
    start = source.characters[0] if source.characters else 0
    before = LABEL_BEFORE.search(prompt.text, max(start - 60, 0), start)
    return None if before is None else int(before[1] or before[2])


def find_marks(text: str) -> Iterator[tuple[str, int]]:
    """Each mark with each of its numbers."""
    for found in MARK.finditer(text):
        parts = re.split(r"\s*(?:,|;|and|&)\s*", found[1] or found[2], flags=re.IGNORECASE)
        for part in parts:
            bounds = [int(number) for number in re.split(r"\s*[-–]\s*", part)]
            yield from ((found[0], number) for number in range(bounds[0], bounds[-1] + 1))


def check_cited_marks(claim: Claim, labels: dict[int, str]) -> Claim:
    """The claim with its marks, each against what the claim rests on."""
    marks = tuple(
        Mark(text, number, source, judge_mark(claim, source))
        for text, number in find_marks(claim.text)
        for source in [labels.get(number)]
    )
    return replace(claim, marks=marks)


def judge_mark(claim: Claim, source: str | None) -> Finding:
    if source is None:
        return "no such number"
    if not claim.how:
        return ""
    if source in claim.leans_on:
        return "right"
    return "another source" if claim.leans_on else "unused"


# --- quotations -------------------------------------------------------------------------------------------------------


def find_quotations(text: str, sources: Sequence[Region]) -> tuple[Quotation, ...]:
    """The quotations of at least two words, and the first source that has them, or most of their words in a row."""
    quoted = [" ".join(next(filter(None, found.groups())).split()) for found in QUOTED.finditer(text)]
    return tuple(find_quotation(one, sources) for one in quoted if len(one.split()) >= SHORTEST_QUOTATION)


def find_quotation(quoted: str, sources: Sequence[Region]) -> Quotation:
    words = split_quoted_words(quoted)
    matchers = {one.name: SequenceMatcher(None, words, split_quoted_words(one.text), False) for one in sources}
    runs = {name: matcher.find_longest_match().size for name, matcher in matchers.items()}
    best = max(runs, key=lambda name: runs[name], default="")
    if not words or 2 * runs[best] < len(words):
        return Quotation(quoted, None, "nowhere")
    return Quotation(quoted, best, "verbatim" if runs[best] == len(words) else "in part")


def split_quoted_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
