"""Where passages are in prompts as retrieval writes them: tags, JSON, numbers, fences, a context in the system prompt.

    <document index="1">...</document>         each tag, or the passages inside a single <context>
    [{"id": 1, "text": "..."}, ...]            each entry of a JSON list, or each line that is a JSON object
    [1] ...  Source 2: ...  ## Document 3      from one number to the next; "1. ..." where nothing else divides the text
    ---------- ... ----------                  the passages between two rules, as LlamaIndex writes them
    Context: ... Question: ...                 the passages after the word

They are looked for in the last message of the user, and then in the system prompt, if that speaks of a context.
"""

import json
import re
from collections.abc import Callable, Iterator

from whyformer._model.prompt import Prompt, Region, write_document

Range = tuple[int, int]  # characters
TAG = re.compile(
    r"<(document|doc|passage|source|context|contexts|chunk|result|item|text|snippet)\b[^<>]*>(.*?)</\1>",
    re.DOTALL | re.IGNORECASE,
)
LABEL = re.compile(
    r"^[ \t]*(?:[-*] |#+ *)?(?:\*\*)?(?:\[\^?(\d{1,3})\]"
    r"|(?:source|document|passage|doc|chunk|context) *#?(\d{1,3})\b\W?)",
    re.IGNORECASE | re.MULTILINE,
)
NUMBER = re.compile(r"^[ \t]*(\d{1,3})[.)]\s+()", re.MULTILINE)
FENCED = re.compile(r"^[ \t]*([-=*_#])\1{4,}[ \t]*\n(.*?)^[ \t]*\1{5,}[ \t]*$", re.DOTALL | re.MULTILINE)
AFTER_WORD = re.compile(
    r"^[ \t#*]*(?:context|passages|documents|sources|information)(?: information)?\s*:(.*?)"
    r"(?=^[ \t#*]*(?:question|query|answer|helpful answer|user|instructions?)\b[^\n]{0,3}:|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
SPEAKS_OF_CONTEXT = re.compile(
    r"\b(?:context|passages?|documents?|sources?|excerpts?|snippets?|information)\b", re.IGNORECASE
)
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def find_laid_out(prompt: Prompt, find_plain: Callable[[], int]) -> list[Range] | None:
    """The characters of each passage; None where paragraphs or lines divide the prompt as it is.

    find_plain: how many sources there are by paragraphs or lines.
    """
    users = [one for one in prompt.regions if one.kind in ("user", "other") and one.text.strip() and one.characters]
    asking = [one for one in users if one.kind == "user"][-1:] or users[-1:]
    systems = [one for one in prompt.regions if one.kind == "system" and one.characters]
    for one in asking:
        if found := find_in_text(one, (find_tagged, find_listed, find_labelled, find_fenced)):
            return found
    if find_plain() > 1:
        return None
    for one in asking:
        if found := find_in_text(one, (find_numbered, find_after_word)):
            return found
    every = (find_tagged, find_listed, find_labelled, find_fenced, find_numbered, find_after_word, find_after_context)
    return next((found for one in systems if (found := find_in_text(one, every))), None)


def find_in_text(region: Region, ways: tuple[Callable[[str], list[Range]], ...]) -> list[Range] | None:
    """In characters of the prompt; at least two that hold a letter or a digit."""
    start = region.characters[0] if region.characters else 0
    for find in ways:
        ranges = [one for one in find(region.text) if any(letter.isalnum() for letter in region.text[slice(*one)])]
        if len(ranges) > 1:
            return [(start + a, start + b) for a, b in ranges]
    return None


def find_tagged(text: str) -> list[Range]:
    found = [one.span(2) for one in TAG.finditer(text)]
    inner = [(a + start, a + stop) for a, b in found for start, stop in (m.span(2) for m in TAG.finditer(text[a:b]))]
    if inner or len(found) != 1:
        return inner or found
    return divide_block(text, *found[0])


def find_listed(text: str) -> list[Range]:
    """The entries of the first JSON list of documents, or the lines that are JSON documents."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\[\s*[{\"]", text)):
        entries, at = [], start + 1
        while (match := re.compile(r"[\s,]*").match(text, at)) and (at := match.end()) < len(text) and text[at] != "]":
            try:
                entry, stop = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                break
            if is_document(entry):
                entries.append((at, stop))
            at = stop
        if len(entries) > 1:
            return entries
    return [line.span() for line in re.finditer(r"^\{.*\}$", text, re.MULTILINE) if is_json_document(line[0])]


def is_document(entry: object) -> bool:
    try:
        return bool(write_document(entry)["text"])
    except TypeError:
        return False


def is_json_document(line: str) -> bool:
    try:
        return is_document(json.loads(line))
    except (ValueError, RecursionError):
        return False


def find_labelled(text: str) -> list[Range]:
    return list(divide_at_numbers(text, LABEL))


def find_numbered(text: str) -> list[Range]:
    return list(divide_at_numbers(text, NUMBER))


def divide_at_numbers(text: str, label: re.Pattern[str]) -> Iterator[Range]:
    """From one label to the next, if their numbers count up from 0 or 1; the last one ends at a blank line."""
    labels = [(one.start(), int(one[1] or one[2])) for one in label.finditer(text)]
    numbers = [number for _, number in labels]
    if not labels or numbers != list(range(numbers[0], numbers[0] + len(labels))) or numbers[0] > 1:
        return
    starts = [start for start, _ in labels]
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        if stop == len(text):
            end = BLANK_LINE.search(text, start) or re.compile(r"\n(?=\s*(?:question|query|answer)\b)", re.I).search(
                text, start
            )
            stop = end.start() if end else stop
        yield start, stop


def find_fenced(text: str) -> list[Range]:
    return [one for fenced in FENCED.finditer(text) for one in divide_block(text, *fenced.span(2))]


def find_after_word(text: str) -> list[Range]:
    return [one for block in AFTER_WORD.finditer(text) for one in divide_block(text, *block.span(1))]


def find_after_context(text: str) -> list[Range]:
    """The paragraphs after the one that speaks of a context."""
    paragraphs = divide_block(text, 0, len(text))
    speaking = [n for n, place in enumerate(paragraphs) if SPEAKS_OF_CONTEXT.search(text[slice(*place)])]
    return paragraphs[speaking[0] + 1 :] if speaking and speaking[0] < 2 else []


def divide_block(text: str, start: int, stop: int) -> list[Range]:
    """Its paragraphs or, if it has only one, its lines."""
    for separator in (BLANK_LINE, re.compile(r"\n")):
        edges = [start, *(end for one in separator.finditer(text, start, stop) for end in one.span()), stop]
        parts = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if text[a:b].strip()]
        if len(parts) > 1:
            return parts
    return parts
