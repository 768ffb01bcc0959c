"""Documents that a prompt is answered from, as retrieval hands them over, and where they are in the prompt.

    page_content, metadata, id                                LangChain; also (document, score)
    text or get_content(), metadata, node_id                  LlamaIndex; a NodeWithScore holds such a node
    {"id": ..., "text": ..., "metadata": {...}}               also page_content, content, passage ...; see TEXTS and IDS
    (id, text), (id, text, metadata)
    "text"

They are read by their attributes: no library is imported. Order, ids and metadata are the caller's. Results of tools
are documents too: one each or, where the result is JSON with a list of them, one for each entry.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from whyformer._model.preprocessors import ChatMessage
from whyformer._model.prompt.chat import RenderedChat, list_texts
from whyformer._model.prompt.regions import Characters, NamedPart, Region
from whyformer._plain.json_value import Json, JsonObject, JsonValue
from whyformer._plain.setting_checks import list_entries
from whyformer.errors import InputError

TEXTS = ("text", "page_content", "content", "contents", "passage", "snippet", "chunk", "body", "document")
IDS = ("id", "doc_id", "document_id", "node_id", "chunk_id", "id_", "_id")
HOLDERS = ("node", "document", "doc", "kwargs")  # fields that hold the document itself, beside a score
FORMS = (
    'a text, {"id": ..., "text": ..., "metadata": {...}}, (id, text, metadata), or a document of LangChain or of '
    "LlamaIndex"
)
BETWEEN_ENTRIES = re.compile(r"[\s,]*")  # of a JSON list
BETWEEN = "\n\n"  # documents that are put before a question
PUT_BEFORE = (
    "The documents were put before the question, separated by blank lines; the model may have been given them "
    "otherwise."
)


class PageDocument(Protocol):
    """A document of LangChain."""

    page_content: str

    @property
    def metadata(self) -> Mapping[str, object]: ...


class ContentNode(Protocol):
    """A node of LlamaIndex, with or without its score."""

    def get_content(self) -> str: ...


DocumentLike: TypeAlias = str | Mapping[str, JsonValue] | Sequence[JsonValue] | PageDocument | ContentNode


@dataclass(frozen=True)
class RetrievedDocument:
    """A text that an answer may come from."""

    text: str
    id: str | None = None
    metadata: JsonObject = field(default_factory=dict)
    given: Mapping[str, Json] = field(default_factory=dict)  # the dictionary that it was read from

    @property
    def for_template(self) -> dict[str, Json]:
        """As chat templates expect it; a dictionary as the caller wrote it."""
        title = self.metadata.get("title") or self.id or ""
        return {"title": title, "doc_id": self.id or "", **self.given, "text": self.text}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_documents(given: object) -> tuple[RetrievedDocument, ...]:
    """Documents in any of the forms above, in the caller's order."""
    listed = list_entries(given)
    if listed is None:
        raise InputError(f"documents must be a list, got {type(given).__name__}. Each is {FORMS}.", code="E_TXT_TYPE")
    if not listed:
        raise InputError("documents is empty. Pass at least one, or leave documents out.", code="E_TXT_EMPTY")
    return tuple(check_document(recognise_document(one), one, number) for number, one in enumerate(listed, 1))


def check_document(found: RetrievedDocument | None, given: object, number: int) -> RetrievedDocument:
    if found is None:
        has = f" with {', '.join(map(str, given))[:80] or 'nothing'}" if isinstance(given, Mapping) else ""
        raise InputError(f"Document {number} is {type(given).__name__}{has}; pass {FORMS}.", code="E_TXT_TYPE")
    if not found.text.strip():
        raise InputError(f"Document {number} has no text.", code="E_TXT_EMPTY")
    return found


def recognise_document(given: object) -> RetrievedDocument | None:
    """The document in one of the forms above; None if it is none of them."""
    if isinstance(given, str):
        return RetrievedDocument(given)
    if isinstance(given, Mapping):
        return find_document_fields(given)
    if isinstance(given, list | tuple):
        return find_document_tuple(given)
    for name in TEXTS[:2]:
        if isinstance(text := getattr(given, name, None), str):
            return RetrievedDocument(text, find_attribute_id(given), read_metadata(getattr(given, "metadata", None)))
    if callable(read := getattr(given, "get_content", None)) and isinstance(text := read(), str):
        return RetrievedDocument(text, find_attribute_id(given), read_metadata(getattr(given, "metadata", None)))
    return None


def write_document(given: object) -> JsonObject:
    """As a dictionary, for a file; TypeError if it is no document."""
    found = recognise_document(given)
    if found is None and callable(dump := getattr(given, "model_dump", None)):
        return read_metadata(dump())  # a response of a client
    if found is None:
        raise TypeError(f"{type(given).__name__} is no document")
    return {"id": found.id, "text": found.text, "metadata": found.metadata}


def find_document_tuple(given: Sequence[Json]) -> RetrievedDocument | None:
    """(id, text), (id, text, metadata), or (document, score)."""
    if len(given) == 2 and isinstance(given[1], int | float) and (inner := recognise_document(given[0])) is not None:
        return replace(inner, metadata={**inner.metadata, "score": as_json(given[1])})
    if len(given) not in (2, 3) or not isinstance(given[1], str) or isinstance(given[0], list | tuple | Mapping):
        return None
    return RetrievedDocument(given[1], as_id(given[0]), read_metadata(given[2] if len(given) == 3 else None))


def find_document_fields(given: Mapping[str, Json]) -> RetrievedDocument | None:
    """A dictionary; what it holds beside text, id and metadata is metadata too."""
    for name in HOLDERS:
        if isinstance(given.get(name), Mapping) and (inner := recognise_document(given[name])) is not None:
            beside = {key: value for key, value in given.items() if key not in (*HOLDERS, *IDS)}
            return replace(inner, metadata={**read_metadata(beside), **inner.metadata})
    for name in TEXTS:
        if (text := join_parts(given.get(name))) is not None:
            own = next((key for key in IDS if given.get(key) is not None), None)
            beside = {key: value for key, value in given.items() if key not in (name, own, "metadata")}
            metadata = {**read_metadata(beside), **read_metadata(given.get("metadata"))}
            return RetrievedDocument(text, None if own is None else as_id(given[own]), metadata, given)
    return None


def join_parts(content: object) -> str | None:
    """A text, or the texts of content parts: [{"type": "text", "text": "..."}]; None if it is neither."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) and content else [None]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else None


def find_attribute_id(given: object) -> str | None:
    return next((as_id(own) for name in ("node_id", *IDS) if (own := getattr(given, name, None)) is not None), None)


def as_id(given: object) -> str | None:
    return None if given is None else str(given)


def read_metadata(given: object) -> JsonObject:
    """As JSON; what has no form in it, such as a date, as text."""
    if given is None or not isinstance(given, Mapping):
        return {} if given is None else {"metadata": as_json(given)}
    return {str(name): as_json(value) for name, value in given.items()}


def as_json(value: object) -> Json:
    match value:
        case bool() | int() | str() | None:
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping():
            return {str(name): as_json(one) for name, one in value.items()}
        case list() | tuple():
            return [as_json(one) for one in value]
    return str(value)


# --- where they are ---------------------------------------------------------------------------------------------------


def locate_documents(text: str, documents: Sequence[RetrievedDocument]) -> list[Characters | None]:
    """Where each document is in a text: in their order if they all are, else the longest first, without overlap."""
    cores = [one.text.strip() for one in documents]
    in_order: list[Characters | None] = []
    at = 0
    for core in cores:
        start = text.find(core, at)
        if start < 0:
            break
        at = start + len(core)
        in_order.append((start, at))
    if len(in_order) == len(cores):
        return in_order
    places: dict[int, Characters] = {}
    for number in sorted(range(len(cores)), key=lambda n: -len(cores[n])):
        free = find_free_place(text, cores[number], places.values())
        if free is not None:
            places[number] = free
    return [places.get(number) for number in range(len(cores))]


def find_free_place(text: str, wanted: str, taken: Iterable[Characters]) -> Characters | None:
    start = text.find(wanted)
    while start >= 0:
        place = (start, start + len(wanted))
        overlapping = [other for other in taken if other[0] < place[1] and place[0] < other[1]]
        if not overlapping:
            return place
        start = text.find(wanted, max(start + 1, *(other[1] for other in overlapping)))
    return None


def cut_parts(text: str, parts: Sequence[NamedPart], documents: Sequence[NamedPart]) -> list[NamedPart]:
    """The parts of a prompt without the documents inside them, and the documents, in order."""
    cut = [*documents]
    for part in parts:
        begin, end = part.characters
        inside = sorted(one.characters for one in documents if one.characters[0] < end and begin < one.characters[1])
        for start, stop in zip([begin, *(one[1] for one in inside)], [*(one[0] for one in inside), end], strict=True):
            if any(letter.isalnum() for letter in text[start:stop]):  # not just a line break or a bracket
                cut.append(NamedPart(part.name, part.kind, (start, stop)))
    return sorted(cut, key=lambda part: part.characters)


def identify_part(part: Region, documents: Sequence[Region]) -> Region:
    """The part with id and metadata of the document around it."""
    start, stop = part.characters or (0, 0)
    for one in documents:
        if one.characters is not None and one.characters[0] <= start and stop <= one.characters[1]:
            return replace(part, id=one.id, metadata=one.metadata)
    return part


# --- a prompt with documents ------------------------------------------------------------------------------------------

RenderDocuments: TypeAlias = Callable[[Sequence[ChatMessage], Sequence[ChatMessage] | None], RenderedChat]


def are_written(text: str, documents: Sequence[RetrievedDocument]) -> bool:
    """Whether a prompt has the documents in it: half of them at least, since a short one may occur by chance."""
    return 2 * sum(place is not None for place in locate_documents(text, documents)) >= len(documents)


def write_documents(text: str, documents: Sequence[RetrievedDocument]) -> tuple[str, tuple[str, ...]]:
    """The text of a prompt that has the documents in it, and a note if they were put there."""
    if are_written(text, documents):
        return text, ()
    return f"{join_documents(documents)}{BETWEEN}{text}", (PUT_BEFORE,)


def render_with_documents(
    render: RenderDocuments, messages: Sequence[ChatMessage], documents: Sequence[RetrievedDocument]
) -> tuple[RenderedChat, tuple[str, ...]]:
    """The chat with its documents: in its messages, by its template, or before its last question."""
    if not documents or are_written("\n".join(list_texts(messages)), documents):
        return render(messages, None), ()
    by_template = render(messages, [one.for_template for one in documents])
    if are_written(by_template.text, documents):
        return by_template, ()
    # The messages with the documents at the beginning of the last message of the user.
    last = max((n for n, one in enumerate(messages) if one.get("role") in ("user", "human")), default=None)
    if last is None:
        raise InputError("The chat has no message of the user that documents could be put before.")
    content = messages[last].get("content") or ""
    written = join_documents(documents)
    if isinstance(content, str):
        whole: str | list[ChatMessage] = f"{written}{BETWEEN}{content}"
    else:
        whole = [{"type": "text", "text": f"{written}{BETWEEN}"}, *content]
    return render([*messages[:last], {**messages[last], "content": whole}, *messages[last + 1 :]], None), (PUT_BEFORE,)


def join_documents(documents: Sequence[RetrievedDocument]) -> str:
    return BETWEEN.join(one.text.strip() for one in documents)


# --- results of tools -------------------------------------------------------------------------------------------------


def list_document_regions(regions: Sequence[Region]) -> Iterator[tuple[Region, RetrievedDocument | None]]:
    """Documents and results of tools; a result that lists documents as JSON is divided, each with where it is."""
    for region in regions:
        if region.kind == "document":
            yield region, None
        elif region.kind == "tool" and region.text.strip():
            entries = list(find_listed_documents(region.text)) if region.characters is not None else []
            for number, (place, document) in enumerate(entries, 1):
                assert region.characters is not None
                begin = region.characters[0]
                name = f"{region.name}, {number}"
                own = (begin + place[0], begin + place[1])
                yield replace(region, name=name, text=region.text[slice(*place)], characters=own), document
            if not entries:
                yield region, None


def find_listed_documents(text: str) -> Iterator[tuple[Characters, RetrievedDocument]]:
    """The documents of a JSON list, or of the first such list in a JSON object, with the characters of each."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    inside = [one for one in value.values() if isinstance(one, list)] if isinstance(value, dict) else []
    lists = [value] if isinstance(value, list) else [one for one in inside if not any(isinstance(e, str) for e in one)]
    wanted = [one for one in lists if one and all(recognise_document(entry) for entry in one)]
    for start in (n for n, letter in enumerate(text) if letter == "[" and wanted):
        entries = list(scan_entries(text, start))
        if [entry for _, entry in entries] in wanted:
            for place, entry in entries:
                document = recognise_document(entry)
                assert document is not None
                yield place, document
            return


def scan_entries(text: str, start: int) -> Iterator[tuple[Characters, Json]]:
    """The entries of the JSON list that begins here, with the characters of each."""
    decoder, at = json.JSONDecoder(), start + 1
    while True:
        at = BETWEEN_ENTRIES.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or text[at] == "]":
            return
        try:
            entry, stop = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield (at, stop), entry
        at = stop
