"""The function's name and the arguments of tool calls that a model wrote, by their characters in the answer.

    {"name": "get_weather", "arguments": {"city": "Rome"}}         JSON, alone, in a list, in tags or in a sentence
    {"function": {"name": ..., "arguments": ...}}                  as the API of OpenAI writes it
    {"name": ..., "parameters": {...}}                             as Llama writes it
    get_weather(city="Rome")                                       Python, as Gemma and Llama 4 write it

Arguments that are JSON written as a string, as in OpenAI's API, are one part.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from whyformer._model.prompt.regions import Characters, skip_blanks

NAMES = ("name", "function")
ARGUMENTS = ("arguments", "parameters", "args")
LONGEST = 20_000  # characters of an answer that is read


@dataclass(frozen=True)
class CallPart:
    """A name or an argument of a tool call: `text` is `start` to `stop` in characters of the answer."""

    name: str  # "function" or "argument city"
    text: str
    start: int
    stop: int
    call: int = 0  # which call of the answer


def find_tool_calls(answer: str) -> list[CallPart]:
    """The parts of all calls in an answer, in order; none if it calls nothing."""
    if len(answer) > LONGEST:
        return []
    calls = list(find_json_calls(answer)) or list(find_python_calls(answer))
    return [
        CallPart(name, answer[slice(*place)], *place, number)
        for number, parts in enumerate(calls)
        for name, place in parts
        if place[0] < place[1]
    ]


def find_json_calls(answer: str) -> Iterator[list[tuple[str, Characters]]]:
    """The parts of each JSON object that has a name and arguments; inner objects of a call are not looked at."""
    at = answer.find("{")
    while at >= 0:
        end = at + 1
        try:
            fields, whole_end = scan_object(answer, at)
        except (ValueError, RecursionError):
            fields = {}
        else:
            if parts := list_call_parts(answer, fields):
                yield parts
                end = whole_end
        at = answer.find("{", end)


def list_call_parts(answer: str, fields: dict[str, Characters]) -> list[tuple[str, Characters]]:
    """The name and the arguments of one object; empty if it is no call."""
    named = next((fields[one] for one in NAMES if one in fields and answer[fields[one][0]] == '"'), None)
    given = next((fields[one] for one in ARGUMENTS if one in fields), None)
    if named is None or given is None:
        return []
    parts = [("function", drop_quotes(answer, named))]
    if answer[given[0]] != "{":
        return [*parts, ("arguments", drop_quotes(answer, given))]
    arguments, _ = scan_object(answer, given[0])
    return parts + [(f"argument {name}", drop_quotes(answer, place)) for name, place in arguments.items()]


def scan_object(text: str, at: int) -> tuple[dict[str, Characters], int]:
    """Where the value of each field of the JSON object at `at` is, and where the object ends."""
    decoder, fields = json.JSONDecoder(), {}
    _, end = decoder.raw_decode(text, at)
    at = skip_blanks(text, at + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        at = skip_blanks(text, skip_blanks(text, at) + 1)  # over the colon
        _, stop = decoder.raw_decode(text, at)
        fields[name] = (at, stop)
        at = skip_blanks(text, stop)
        at = skip_blanks(text, at + 1) if text[at] == "," else at
    return fields, end


def drop_quotes(text: str, place: Characters) -> Characters:
    start, stop = place
    return (start + 1, stop - 1) if text[start] in "\"'" and text[stop - 1] == text[start] else place


def find_python_calls(answer: str) -> Iterator[list[tuple[str, Characters]]]:
    """Calls with named arguments only, each on one line: in prose, brackets are no calls."""
    for match in re.finditer(r"\b([A-Za-z_][\w.]*)\(([^()\n]*)\)", answer):
        try:
            call = ast.parse(match[0], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            continue
        parts = [("function", match.span(1))]
        for keyword in call.keywords:
            value = keyword.value
            before = match.start() + count_characters(match[0], value.col_offset)
            after = match.start() + count_characters(match[0], value.end_col_offset or 0)
            parts.append((f"argument {keyword.arg}", drop_quotes(answer, (before, after))))
        yield parts


def count_characters(line: str, offset: int) -> int:
    """ast counts the bytes of UTF-8."""
    return len(line.encode()[:offset].decode(errors="ignore"))
