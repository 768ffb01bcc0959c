"""What another engine logged about a prompt and its answer: token ids, texts, log-probabilities.

    {"prompt_token_ids": [...], "token_ids": [...], "logprobs": [...]}         vLLM
    {"messages": [...], "choices": [{"message": {...}, "logprobs": {...}}]}    the API of OpenAI, with its request
    {"request": {"messages": [...]}, "response": {"choices": [...]}}           the same, apart; also each in a "body"
    {"prompt": "...", "text": "..."}                                           texts alone

Token ids are taken as they are. Tokens that are given as texts become ids if each of them is one token of this model;
otherwise the answer is tokenised once, and a note says so.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from whyformer._model.preprocessors import ChatMessage, Tokenizer
from whyformer._model.prompt.continuation import encode_continuation
from whyformer._model.prompt.documents import join_parts
from whyformer._plain.json_value import Json
from whyformer._plain.setting_checks import list_entries
from whyformer.errors import InputError

LogRecord: TypeAlias = Mapping[str, Any]
PROMPT_IDS = ("prompt_token_ids", "prompt_ids", "ids")
ANSWER_IDS = ("token_ids", "output_token_ids", "answer_ids")
ANSWER_TEXT = ("answer", "text", "response", "output_text")


@dataclass(frozen=True)
class LoggedAnswer:
    """What a log says about an answer."""

    ids: tuple[int, ...] | None = None
    message: ChatMessage | None = None  # of a chat
    text: str | None = None
    tokens: tuple[str, ...] | None = None
    log_probabilities: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.ids is None and self.text is None and self.message is None


def join_request_and_response(record: Any) -> LogRecord:
    """One level of fields; prompts that are token ids or a list of one, under the names that they have elsewhere."""
    given = open_record(record, "A log")
    request = open_record(given.get("request") or {}, '"request" of the log')
    response = given.get("response")
    if response is not None and not isinstance(response, str):
        response = open_record(response, '"response" of the log')
    own = {name: value for name, value in given.items() if name not in ("request", "response")}
    answered = {"answer": response} if isinstance(response, str) else response or {}
    joined = {**request, **answered, **own}
    prompts = joined.get("prompt")
    if isinstance(prompts, list):
        if prompts and all(isinstance(one, int) for one in prompts):
            return {**joined, "prompt": None, "prompt_token_ids": prompts}
        if len(prompts) != 1:
            raise InputError(f"The request has {len(prompts)} prompts. Pass a record for each, with its own answer.")
        joined["prompt"] = prompts[0]
    return joined


def open_record(given: Any, what: str) -> LogRecord:
    """A dictionary, or an object of a client that has the form of one; the inner one of {"body": ...}."""
    if not isinstance(given, Mapping) and callable(dump := getattr(given, "model_dump", None)):
        given = dump()
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must be a dictionary, got {type(given).__name__}.", code="E_TXT_TYPE")
    return open_record(given["body"], f'"body" in {what}') if isinstance(given.get("body"), Mapping) else given


def read_logged_answer(record: LogRecord) -> LoggedAnswer:
    """The answer of a record; of several choices or outputs, the first."""
    listed = [record[name] for name in ("choices", "outputs") if isinstance(record.get(name), list | tuple)]
    choices = next((inner for inner in listed if inner), [record])
    choice = choices[0]
    if not isinstance(choice, Mapping):
        raise InputError(f"The first answer of the log must be a dictionary, got {type(choice).__name__}.")
    message = choice.get("message")
    if message is not None and not isinstance(message, Mapping):
        raise InputError(f'"message" of the log must be a dictionary, got {type(message).__name__}.')
    text = message.get("content") if message is not None else find_first(choice, ANSWER_TEXT)
    text = text if (joined := join_parts(text)) is None else joined
    if text is not None and not isinstance(text, str):
        raise InputError(f"The answer of the log must be a text, got {type(text).__name__}.")
    given = find_first(choice, ANSWER_IDS)
    ids = list_entries(given)
    if ids is None and given is not None:
        raise InputError(f"The token ids of the log must be a list, got {type(given).__name__}.", code="E_TXT_TYPE")
    logged = choice.get("logprobs")
    values = read_log_probabilities(logged, ids)
    if message is not None and not text and not message.get("tool_calls"):
        refused = message.get("refusal")
        why = f"the model refused: {refused[:80]!r}" if isinstance(refused, str) else "its content is empty"
        raise InputError(f"The message of the response says nothing: {why}.", code="E_TXT_EMPTY")
    several = f"The response has {len(choices)} choices; the first of them is read."
    notes = (several,) if len(choices) > 1 else ()
    return LoggedAnswer(None if ids is None else tuple(ids), message, text, read_token_texts(logged), values, notes)


def list_logged_calls(answer: LoggedAnswer) -> list[dict[str, Any]]:
    """The tool calls of a message as {"name": ..., "arguments": {...}}; arguments are often JSON in a string."""
    calls = []
    for call in list_entries((answer.message or {}).get("tool_calls")) or []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return []
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            with suppress(ValueError):  # else kept as the text that it is
                arguments = json.loads(arguments)
        calls.append({"name": function["name"], "arguments": arguments})
    return calls


def find_first(record: LogRecord, names: Sequence[str]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def read_log_probabilities(logged: Json, ids: Sequence[Json] | None) -> tuple[float, ...] | None:
    """One number for each token of the answer; None if the log has none, or has them in a form that is not known."""
    if isinstance(logged, Mapping):
        lists = [logged.get(name) for name in ("content", "token_logprobs")]
        logged = next((one for one in lists if isinstance(one, list | tuple) and one), None)
    if not isinstance(logged, list | tuple) or not logged:
        return None
    values = [read_number(one, None if ids is None else ids[n]) for n, one in enumerate(logged[: len(ids or logged)])]
    return None if None in values else tuple(float(value) for value in values if value is not None)


def read_number(one: Any, token: Json) -> float | None:
    """-0.1, {"logprob": -0.1}, or by the id of the token {"17": {"logprob": -0.1}}."""
    if isinstance(one, Mapping):
        by_token = one.get(str(token), one.get(token) if isinstance(token, int) else None)
        chosen = one.get("logprob", by_token)
        return None if chosen is None else read_number(chosen, token)
    is_number = isinstance(one, int | float) and not isinstance(one, bool) and abs(one) <= sys.float_info.max
    return float(one) if is_number else None


def read_token_texts(logged: Any) -> tuple[str, ...] | None:
    """The tokens of the answer as texts."""
    if not isinstance(logged, Mapping):
        return None
    if isinstance(logged.get("tokens"), Sequence):
        tokens = list(logged["tokens"])
    else:
        tokens = [one.get("token") for one in list_entries(logged.get("content")) or [] if isinstance(one, Mapping)]
    return tuple(tokens) if tokens and all(isinstance(token, str) for token in tokens) else None


def find_token_ids(tokenizer: Tokenizer, tokens: Sequence[str], text: str) -> list[int] | None:
    """The ids of tokens that are given as texts; None unless each is one token and together they say the text."""
    ids = []
    for token in tokens:
        found = encode_continuation(tokenizer, "", token, special=True)[0]
        if len(found) != 1:
            return None
        ids += found
    return ids if tokenizer.decode(ids) == text else None
