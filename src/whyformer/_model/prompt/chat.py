"""A chat as the template of a tokenizer writes it, and where each message is in that text.

Messages are found exactly, whatever the template does with them. The template is rendered twice: once as it is, once
with every text of a message replaced by a mark that occurs nowhere else. What is between the marks is text of the
template, and both renderings must agree: template text and messages, put together again, are the prompt, character by
character. A template that drops earlier thinking drops the mark too, so that thinking is no region.

    <think>...</think> in a message of the assistant, `reasoning_content`      thinking
    tool_calls                                                                 tool call NAME: the JSON object
    a message with the role tool                                               tool result NAME
    tools=                                                                     tool definition NAME
    documents=                                                                 document N

If the two renderings do not agree, because the template decides by what a message says, the prompt is one region and a
note says so.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from whyformer._model.preprocessors import ChatMessage, Tokenizer, ToolLike
from whyformer._model.prompt.chat_bounds import refuse_overlong_chat
from whyformer._model.prompt.regions import NamedPart
from whyformer._plain.json_value import Json
from whyformer._plain.setting_checks import list_entries
from whyformer._plain.tokens import number_repeated
from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._model.model import Model

OPEN, CLOSE = "\ue000", "\uf8ff"  # private-use characters around the number of a mark
DIGITS = {ord(str(digit)): chr(0xE100 + digit) for digit in range(10)}
MARK = re.compile(f"{OPEN}([\ue100-\ue109]+){CLOSE}")
THINKING = re.compile(r"(<think>|</think>)")
ROLES = {"developer": "system", "function": "tool", "ipython": "tool", "model": "assistant", "human": "user"}


@dataclass(frozen=True)
class Owner:
    """Who wrote a text of a chat."""

    name: str
    kind: str
    is_json: bool = False  # written as a JSON object, which belongs to it as a whole


OwnedRange: TypeAlias = tuple[Owner, int, int]  # from the first character, up to and without the last


@dataclass(frozen=True)
class RenderedChat:
    """The text of a chat up to the answer, its parts, and the answer if the last message is one."""

    text: str
    parts: tuple[NamedPart, ...]
    answer: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def filler(self) -> str:
        """What to call the text between the parts."""
        return "template" if self.parts else "prompt"


@dataclass
class Marks:
    """Texts that were replaced by marks, and who wrote them."""

    texts: list[tuple[str, Owner]] = field(default_factory=list)

    def put(self, text: str, owner: Owner) -> str:
        """A mark for this text; white space around it stays, since templates strip it."""
        core = text.strip()
        if not core:
            return text
        number = str(len(self.texts)).translate(DIGITS)
        self.texts.append((core, owner))
        return text.replace(core, f"{OPEN}{number}{CLOSE}", 1)


def render_chat(
    model: "Model",
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[ToolLike] | None,
    documents: Sequence[ChatMessage] | None,
    has_answer: bool,
    **template: Json,
) -> RenderedChat:
    """The prompt that the template makes of these messages."""
    chat = check_messages(messages)
    if not getattr(model.tokenizer, "chat_template", None):
        raise InputError(
            f"The tokenizer of {model.name} has no chat template, so how messages become a prompt is not known. Write "
            "the prompt as a text and use Prompt.from_text(model, text), or set tokenizer.chat_template."
        )
    extras: dict[str, list[ChatMessage]] = {}
    if tools is not None:
        extras["tools"] = list_tool_definitions(tools)
    if documents is not None:
        if not isinstance(documents, Sequence) or not all(isinstance(one, Mapping) for one in documents):
            raise InputError('documents must be a list of dictionaries such as {"title": "Paris", "text": "..."}.')
        extras["documents"] = [dict(one) for one in documents]
    if any(OPEN in text or CLOSE in text for text in list_texts([chat, extras])):
        raise InputError(
            f"A message contains the private-use character {OPEN!r} or {CLOSE!r}, which marks messages here. Remove it."
        )
    is_answered = not has_answer and chat[-1]["role"] in ("assistant", "model")
    if is_answered and len(chat) == 1:
        raise InputError("The chat has nothing but an answer. Pass the messages before it too.")
    before = len(chat) - is_answered

    def render(conversation: list[ChatMessage], extras: dict[str, list[ChatMessage]], *, generates: bool = True) -> str:
        variables = {"add_generation_prompt": generates, **extras, **template}
        refuse_overlong_chat(model.name, model.tokenizer, conversation, **variables)
        try:
            try:
                return model.tokenizer.apply_chat_template(conversation, tokenize=False, **variables)
            except TypeError:  # templates that join texts; a message that calls a tool may say nothing
                said = [{**message, "content": message.get("content") or ""} for message in conversation]
                return model.tokenizer.apply_chat_template(said, tokenize=False, **variables)
        except Exception as error:
            is_of_template = type(error).__module__.startswith("jinja2")
            if not is_of_template and not isinstance(error, TypeError | KeyError | ValueError):
                raise  # code of ours, or the machine
            raise InputError(
                f"The chat template of {model.name} refuses these messages: {str(error)[:200]}. Change their roles or "
                "order to what the template takes."
            ) from None

    marks = Marks()
    marked = [mark_message(message, own, marks) for message, own in zip(chat, name_messages(chat), strict=True)]
    mark = {"tools": mark_tool, "documents": mark_document}
    marked_extras = {
        name: [mark[name](one, number, marks) for number, one in enumerate(values, 1)]
        for name, values in extras.items()
    }
    text, pattern = render(chat[:before], extras), render(marked[:before], marked_extras)
    ranges = locate_texts(text, pattern, marks)
    parts, notes = name_parts(ranges or []), []
    if ranges is None:
        notes.append(
            "The chat template changes messages by what they say, so where each is in the prompt is not known."
        )
    notes += note_left_out(marks, ranges)
    for part in parts:  # the model reads it as a special token, as in a prompt injection
        if (token := find_special_text(model.tokenizer, text[slice(*part.characters)])) is not None:
            notes.append(f"{part.name} contains {token!r}, which the tokenizer reads as a special token.")
    answer = None
    if is_answered:
        whole = render(chat, extras, generates=False)
        answer = find_answer(text, whole, render(marked, marked_extras, generates=False), marks)
        if answer is None:
            answer = join_message(chat[-1])
            notes.append(
                "The template writes an answer differently from its prompt; the text of the last message is used."
            )
    return RenderedChat(text, parts, answer, tuple(notes))


def note_left_out(marks: Marks, ranges: Sequence[OwnedRange] | None) -> list[str]:
    """Of tools and calls of them that the template writes nowhere: the model does not read them."""
    written = {owner.kind for owner, _, _ in ranges or ()}
    given = dict.fromkeys(owner.kind for _, owner in marks.texts if owner.kind in ("tool definition", "tool call"))
    names = {"tool definition": "tools=", "tool call": "tool_calls"}
    return [
        f"The chat template leaves out {names[kind]}: the model does not read it."
        for kind in given
        if ranges is not None and kind not in written
    ]


def find_special_text(tokenizer: Tokenizer, text: str) -> str | None:
    """The first special token that is written in a text."""
    found = [token for token in tokenizer.all_special_tokens if len(token) > 1 and token in text]
    return min(found, key=text.index, default=None)


# --- what is given ----------------------------------------------------------------------------------------------------


def check_messages(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InputError(
            'messages must be a list such as [{"role": "user", "content": "Where is Paris?"}], got '
            f"{'an empty list' if isinstance(messages, Sequence) and not messages else type(messages).__name__}."
        )
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f'Message {n} must be a dictionary with a "role" and a "content", got {message!r:.80}.')
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if content is not None and not isinstance(content, str | list):
            raise InputError(f"The content of message {n} must be a text, got {type(content).__name__}.")
        for part in parts:
            if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InputError(
                    f'The content of message {n} has a part that is no text. Pass texts: {{"type": "text", "text": '
                    "...}."
                )
    return [dict(message) for message in messages]


def list_tool_definitions(tools: Sequence[ToolLike]) -> list[ChatMessage]:
    """The JSON schemas of tools; that of a function is read from its docstring by transformers."""
    listed = list_entries(tools)
    if listed is None:
        raise InputError(f"tools must be a list of JSON schemas or functions, got {type(tools).__name__}.")
    if odd := [tool for tool in listed if not isinstance(tool, Mapping) and not callable(tool)]:
        raise InputError(f"A tool must be a JSON schema or a function, got {type(odd[0]).__name__}.")
    from transformers.utils import get_json_schema

    return [dict(tool) if isinstance(tool, Mapping) else get_json_schema(tool) for tool in listed]


def list_texts(value: Any) -> list[str]:
    """All texts inside lists and dictionaries."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for one in inside for text in list_texts(one)]


# --- marks instead of texts -------------------------------------------------------------------------------------------


def name_messages(chat: Sequence[ChatMessage]) -> list[Owner]:
    """Who each message is from."""
    calls = {call.get("id"): find_call_name(call) for message in chat for call in list_calls(message)}
    kinds = [ROLES.get(role, role) for role in (str(message["role"]) for message in chat)]
    tools = [message.get("name") or calls.get(message.get("tool_call_id"), "") for message in chat]
    names = [f"tool result {tool}".strip() if kind == "tool" else kind for kind, tool in zip(kinds, tools, strict=True)]
    return [Owner(name, kind) for name, kind in zip(number_repeated(names), kinds, strict=True)]


def list_calls(message: ChatMessage) -> list[ChatMessage]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, Sequence) else []


def find_call_name(call: ChatMessage) -> str:
    inner = call.get("function", call)
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def mark_message(message: ChatMessage, owner: Owner, marks: Marks) -> ChatMessage:
    """The message with marks for its texts, in the order in which templates write them."""
    marked = dict(message)
    thinking = Owner(f"thinking{owner.name.removeprefix(owner.kind)}", "thinking")
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(name), str):
            marked[name] = marks.put(message[name], thinking)
    content = message.get("content")
    if isinstance(content, str):
        marked["content"] = mark_thinking(content, owner, thinking, marks)
    elif isinstance(content, list):
        marked["content"] = [dict(part) | {"text": marks.put(part["text"], owner)} for part in content]
    if calls := list_calls(message):
        written = ("name", "arguments", "parameters")
        marked["tool_calls"] = [mark_function(call, "tool call", written, marks) for call in calls]
    return marked


def mark_thinking(content: str, owner: Owner, thinking: Owner, marks: Marks) -> str:
    """A text with the thinking inside it marked apart; its tags stay, since templates look for them."""
    if owner.kind != "assistant" or "</think>" not in content:
        return marks.put(content, owner)
    # Some templates write the opening tag into the prompt.
    parts, is_thinking = [], "<think>" not in content.partition("</think>")[0]
    for part in THINKING.split(content):
        if part in ("<think>", "</think>"):
            is_thinking = part == "<think>"
            parts.append(part)
        else:
            parts.append(marks.put(part, thinking if is_thinking else owner))
    return "".join(parts)


def mark_function(given: ChatMessage, kind: str, names: Sequence[str], marks: Marks) -> ChatMessage:
    """A tool or a call of one, with marks for the texts in these fields."""
    owner = Owner(f"{kind} {find_call_name(given)}".strip(), kind, is_json=True)
    inner = given.get("function", given)
    marked = dict(inner) | mark_texts({name: inner[name] for name in names if name in inner}, owner, marks)
    return dict(given) | {"function": marked} if "function" in given else marked


def mark_tool(tool: ChatMessage, number: int, marks: Marks) -> ChatMessage:
    return mark_function(tool, "tool definition", ("name", "description"), marks)


def mark_document(document: ChatMessage, number: int, marks: Marks) -> ChatMessage:
    return mark_texts(document, Owner(f"document {number}", "document"), marks)


def mark_texts(value: Any, owner: Owner, marks: Marks) -> Any:
    """The same with marks for all texts inside it; names of entries stay."""
    if isinstance(value, str):
        return marks.put(value, owner)
    if isinstance(value, Mapping):
        return {name: mark_texts(one, owner, marks) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [mark_texts(one, owner, marks) for one in value]
    return value


# --- where the texts are ----------------------------------------------------------------------------------------------

WRITTEN: tuple[Callable[[str], str], ...] = (  # how a template may write a text
    lambda text: text,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
)


FROM_DIGITS = {ord(mark): chr(digit) for digit, mark in DIGITS.items()}


def locate_texts(text: str, pattern: str, marks: Marks) -> list[OwnedRange] | None:
    """Who wrote which characters of the text; None if the text is not the pattern with the texts put in.

    Neighbouring texts of one owner are one range; one that is written as JSON is the object around it.
    """
    pieces = MARK.split(pattern)
    literals, numbers = pieces[::2], [int(name.translate(FROM_DIGITS)) for name in pieces[1::2]]
    at = len(literals[0])
    if not text.startswith(literals[0]):
        return None
    found: list[OwnedRange] = []
    for number, literal in zip(numbers, literals[1:], strict=True):
        original, owner = marks.texts[number]
        form = next((one for write in WRITTEN if text.startswith((one := write(original)) + literal, at)), None)
        if form is None:
            return None
        begin = found.pop()[1] if found and found[-1][0] is owner else at
        found.append((owner, begin, at + len(form)))
        at += len(form) + len(literal)
    for i, (owner, start, end) in enumerate(found):
        if owner.is_json:
            after, before = found[i + 1][1] if i + 1 < len(found) else len(text), found[i - 1][2] if i else 0
            found[i] = (owner, *extend_to_object(text, start, end, (before, after)))
    return found if at == len(text) else None


def name_parts(ranges: Sequence[OwnedRange]) -> tuple[NamedPart, ...]:
    """The parts of the text in order; numbered where several calls of a tool have the same name."""
    owners = list({id(owner): owner for owner, _, _ in ranges}.values())
    names = dict(zip(map(id, owners), number_repeated([owner.name for owner in owners]), strict=True))
    return tuple(NamedPart(names[id(owner)], owner.kind, (start, end)) for owner, start, end in ranges)


def extend_to_object(text: str, start: int, end: int, within: tuple[int, int]) -> tuple[int, int]:
    """The innermost JSON object around these characters; the same characters if they are not in one."""
    decoder = json.JSONDecoder()
    for at in (place for place in range(start - 1, within[0] - 1, -1) if text[place] == "{"):
        try:
            _, stop = decoder.raw_decode(text, at)
        except ValueError:
            continue
        if end <= stop <= within[1]:
            return at, stop
    return start, end


def find_answer(prompt: str, whole: str, pattern: str, marks: Marks) -> str | None:
    """The text of the last message as the template writes it after the prompt; None if it changes the prompt."""
    ranges = locate_texts(whole, pattern, marks)
    if ranges is None or not whole.startswith(prompt):
        return None
    end = max((end for _, _, end in ranges if end > len(prompt)), default=None)
    return None if end is None else whole[len(prompt) : end]


def join_message(message: ChatMessage) -> str:
    """The text of a message without a template."""
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or [])
    thinking = message.get("reasoning_content")
    return f"<think>\n{thinking}\n</think>\n\n{text}" if isinstance(thinking, str) and thinking.strip() else text
