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
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product

from whyformer._cite.answer_parts import TEXTS
from whyformer._model.prompt import Prompt, Region, write_document

Range = tuple[int, int]  # characters
TAG = re.compile(
    r"<(document|doc|passage|source|context|contexts|chunk|search_result|result|item|text|snippet)\b[^<>]*>(.*?)</\1>",
    re.DOTALL | re.IGNORECASE,
)
LABEL = re.compile(
    r"^[ \t]*(?:[-*] |#+ *)?(?:\*\*)?(?:\[\^?(\d{1,3})\]"
    r"|[\[(]?(?:source|document|passage|doc|chunk|context|(?:search )?result|article|excerpt) *[#\[(]?(\d{1,3})\b\W?)",
    re.IGNORECASE | re.MULTILINE,
)
NUMBER = re.compile(r"^[ \t]*(\d{1,3})[.)]\s+()", re.MULTILINE)
FENCED = re.compile(r"^[ \t]*([-=*_#])\1{4,}[ \t]*\n(?P<inside>.*?)^[ \t]*\1{5,}[ \t]*$", re.DOTALL | re.MULTILINE)
AFTER_WORD = re.compile(
    r"^[ \t#*]*(?:context|passages|documents|sources|information)(?: information)?\s*:(?P<inside>.*?)"
    r"(?=^[ \t#*]*(?:question|query|answer|helpful answer|user|instructions?)\b[^\n]{0,3}:|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
SPEAKS_OF_CONTEXT = re.compile(rf"\b{TEXTS}\b", re.IGNORECASE)
YAML = re.compile(r"^- \w+:[ \t].*(?:\n[ \t]+\S.*)+", re.MULTILINE)
METADATA = re.compile(r"\s*(?:[a-z]+_[a-z_]+: [^\n]*\s*)+")  # as LlamaIndex writes it
ENDED = re.compile(r"[.!?…。！？]\W*$")
LINE_BREAK = re.compile(r"\n")
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
LAST_ENDS = re.compile(rf"{BLANK_LINE.pattern}|\n(?=[ \t]*(?:question|query|answer)\b)", re.IGNORECASE)


def find_laid_out(prompt: Prompt, find_plain: Callable[[], Sequence[Region]]) -> list[Range] | None:
    """The characters of each passage; None where paragraphs or lines divide the prompt as it is.

    find_plain: the sources by paragraphs or lines.
    """
    users = [one for one in prompt.regions if one.kind in ("user", "other") and one.text.strip() and one.characters]
    asking = [one for one in users if one.kind == "user"][-1:] or users[-1:]
    systems = [one for one in prompt.regions if one.kind == "system" and one.characters]
    marked = (find_tagged, find_listed, find_labelled, find_fenced)
    bare = (find_numbered, find_after_word, find_lines)
    found = find_in_texts(asking, marked)
    if found or len(find_plain()) > 1:
        return found
    return find_in_texts(asking, bare) or find_in_texts(systems, (*marked, *bare, find_after_context))


def find_in_texts(regions: Sequence[Region], ways: Sequence[Callable[[str], list[Range]]]) -> list[Range] | None:
    """In characters of the prompt, by the first way that finds at least two that hold a letter or a digit."""
    for region, find in product(regions, ways):
        start, text = region.characters[0] if region.characters else 0, region.text
        ranges = [(start + a, start + b) for a, b in find(text) if any(map(str.isalnum, text[a:b]))]
        if len(ranges) > 1:
            return ranges
    return None


def find_tagged(text: str) -> list[Range]:
    """Each of several; inside a single one those that it holds, or its paragraphs or lines."""
    found = [one.span(2) for one in TAG.finditer(text)]
    if len(found) != 1:
        return found
    inner = [one.span(2) for one in TAG.finditer(text, *found[0])]
    return inner or divide_block(text, *found[0])


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
            if read_document_text(entry):
                entries.append((at, stop))
            at = stop
        if len(entries) > 1:
            return entries
    lines = [line.span() for line in re.finditer(r"^\{.*\}$", text, re.MULTILINE) if is_json_document(line[0])]
    return lines or [entry.span() for entry in YAML.finditer(text)]


def read_document_text(entry: object) -> str | None:
    """The text of what is a document; None of what is not."""
    try:
        return str(write_document(entry)["text"]).strip()  # type: ignore[arg-type]
    except TypeError:
        return None


def is_json_document(line: str) -> bool:
    try:
        return bool(read_document_text(json.loads(line)))
    except (ValueError, RecursionError):
        return False


def divide_at_numbers(label: re.Pattern[str], text: str) -> list[Range]:
    """From one label to the next, if their numbers count up from 0 or 1; the last one ends where LAST_ENDS."""
    labels = list(label.finditer(text))
    numbers = [int(one[1] or one[2]) for one in labels]
    if not labels or numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(labels))):
        return []
    end = LAST_ENDS.search(text, labels[-1].start())
    return list(pairwise([*(one.start() for one in labels), end.start() if end else len(text)]))


def divide_blocks(pattern: re.Pattern[str], text: str) -> list[Range]:
    return [one for block in pattern.finditer(text) for one in divide_block(text, *block.span("inside"))]


def find_lines(text: str) -> list[Range]:
    """The lines of a paragraph, if all of them end like sentences; a line that ends with a colon announces them."""
    for paragraph in divide_at(BLANK_LINE, text, 0, len(text)):
        lines = [one for one in divide_at(LINE_BREAK, text, *paragraph) if not text[slice(*one)].rstrip().endswith(":")]
        if len(lines) > 1 and all(ENDED.search(text[slice(*one)]) for one in lines):
            return lines
    return []


find_labelled, find_numbered = partial(divide_at_numbers, LABEL), partial(divide_at_numbers, NUMBER)
find_fenced, find_after_word = partial(divide_blocks, FENCED), partial(divide_blocks, AFTER_WORD)


def find_after_context(text: str) -> list[Range]:
    """The paragraphs after the one that speaks of a context."""
    paragraphs = divide_block(text, 0, len(text))
    speaking = [n for n, place in enumerate(paragraphs) if SPEAKS_OF_CONTEXT.search(text[slice(*place)])]
    return paragraphs[speaking[0] + 1 :] if speaking and speaking[0] < 2 else []


def divide_block(text: str, start: int, stop: int) -> list[Range]:
    """Its paragraphs or, if it has only one, its lines."""
    parts = divide_at(BLANK_LINE, text, start, stop)
    return parts if len(parts) > 1 else divide_at(LINE_BREAK, text, start, stop)


def divide_at(separator: re.Pattern[str], text: str, start: int, stop: int) -> list[Range]:
    """Lines of metadata belong to the paragraph after them."""
    edges = [start, *(end for one in separator.finditer(text, start, stop) for end in one.span()), stop]
    parts: list[Range] = []
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if parts and METADATA.fullmatch(text, *parts[-1]):
            parts[-1] = (parts[-1][0], b)
        elif text[a:b].strip():
            parts.append((a, b))
    return parts
