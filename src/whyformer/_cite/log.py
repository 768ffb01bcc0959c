"""Logs: one record a line, each a prompt with its answer.

    {"id": "q1", "messages": [...], "documents": [...], "answer": "..."}
    {"id": "q2", "request": {"messages": [...]}, "response": {"choices": [...]}}
    {"id": "q3", "prompt": "...", "answer": "..."}

See Prompt.from_log for what a record may hold. Every line that is not blank is a record, also one that cannot be read:
it ends as an error record. Ids that occur twice are told apart by the number of the line.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from whyformer._model.prompt import write_document
from whyformer._plain.archive import describe_os_error
from whyformer._plain.json_value import JsonObject, JsonValue
from whyformer.data import Data, Example
from whyformer.errors import InputError

LOG_SUFFIXES = (".jsonl", ".ndjson")
RECORD_IDS = ("id", "custom_id", "request_id")


class LogLine(str):
    """A line of a log, and its number."""

    number: int

    @classmethod
    def make(cls, number: int, text: str) -> "LogLine":
        line = cls(text)
        line.number = number
        return line


def read_log(source: str | os.PathLike[str] | Iterable[Mapping[str, JsonValue]]) -> Data:
    """The records of a file of JSON lines, or of a list, as text with an id each."""
    if isinstance(source, str | os.PathLike):
        name, lines = os.path.basename(os.fspath(source)), list(read_lines(Path(os.fspath(source))))
    else:
        name, lines = "the list", list(write_lines(source))
    if not lines:
        raise InputError(
            f'{name} has no records. A log has one a line: {{"messages": [...], "answer": ...}}.', code="E_DATA"
        )
    ids = tell_apart([(find_record_id(line), line.number) for line in lines])
    return Data(name, tuple(Example(id, line) for id, line in zip(ids, lines, strict=True)))


def read_lines(path: Path) -> Iterator[LogLine]:
    """The lines that are not blank; bytes that are no UTF-8 are kept, and refused with their record."""
    try:
        contents = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read {str(path)!r}: {describe_os_error(error).lower()}.", code="E_DATA") from None
    text = contents.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield LogLine.make(number, line.strip())


def write_lines(records: Iterable[object]) -> Iterator[LogLine]:
    """Records in memory as JSON; documents of LangChain and LlamaIndex as dictionaries."""
    for number, record in enumerate(records, 1):
        try:
            text = json.dumps(record, default=write_document)
        except (TypeError, ValueError, RecursionError):
            text = repr(type(record))  # no JSON: an error record
        yield LogLine.make(number, text)


def parse_log_line(line: LogLine) -> JsonObject:
    """The record of a line; a list is the messages of a chat."""
    try:
        line.encode("utf-8")
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        named = {UnicodeEncodeError: "not UTF-8", RecursionError: "nested too deeply"}
        problem = named.get(type(error), f"not JSON: {str(error)[:100]}")
        raise InputError(f"Line {line.number} is {problem}.", code="E_DATA") from None
    if isinstance(record, list):
        record = {"messages": record}
    if not isinstance(record, dict):
        found = f"Line {line.number} is {json.dumps(record)[:40]}"
        raise InputError(f"{found}; a record is an object with messages or a prompt, and an answer.", code="E_DATA")
    return record


def find_record_id(line: LogLine) -> str:
    """The id that a record has; else that of its line."""
    try:
        record = parse_log_line(line)
    except InputError:
        return f"line {line.number}"
    found = (record[name] for name in RECORD_IDS if isinstance(record.get(name), str | int))
    return next((text for own in found if (text := str(own).strip())), f"line {line.number}")


def tell_apart(ids: Iterable[tuple[str, int]]) -> list[str]:
    """Ids, each with the number of its line if it occurred before."""
    told: dict[str, None] = {}
    for id, line in ids:
        own = id
        while own in told:
            own = f"{own} (line {line})"
        told[own] = None
    return list(told)
