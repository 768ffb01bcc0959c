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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from whyformer._model.prompt.chat_bounds import refuse_overlong_chat
from whyformer._model.prompt.regions import NamedPart
from whyformer._plain.setting_checks import list_entries
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
    """Texts that were replaced by marks."""

    texts: list[str] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)

    def put(self, text: str, owner: Owner) -> str:
        """A mark for this text; white space around it stays, since templates strip it."""
        core = text.strip()
        if not core:
            return text
        self.texts.append(core)
        self.owners.append(owner)
        number = str(len(self.texts) - 1).translate(DIGITS)
        start = text.index(core)
        return f"{text[:start]}{OPEN}{number}{CLOSE}{text[start + len(core) :]}"


def render_chat(
    model: "Model",
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None,
    documents: Sequence[Mapping[str, Any]] | None,
    has_answer: bool,
    **template: Any,
) -> RenderedChat:
    """The prompt that the template makes of these messages."""
    chat = check_messages(messages)
    check_template(model)
    given = None if tools is None else [as_tool_definition(tool) for tool in check_tools(tools)]
    papers = None if documents is None else check_documents(documents)
    refuse_private_characters([chat, given, papers])
    answered = not has_answer and chat[-1]["role"] in ("assistant", "model")
    if answered and len(chat) == 1:
        raise InputError("The chat has nothing but an answer. Pass the messages before it too.")
    before = chat[:-1] if answered else chat

    def render(conversation: list[dict[str, Any]], tools: Any, documents: Any, *, generates: bool) -> str:
        extra = {name: value for name, value in (("tools", tools), ("documents", documents)) if value is not None}
        refuse_overlong_chat(
            model.name, model.tokenizer, conversation, add_generation_prompt=generates, **extra, **template
        )
        try:
            return model.tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=generates, **extra, **template
            )
        except Exception as error:
            if isinstance(error, ImportError) or not is_template_error(error):
                raise
            raise InputError(
                f"The chat template of {model.name} refuses these messages: {str(error)[:200]}. Change their roles or "
                "order to what the template takes."
            ) from None

    marks = Marks()
    owners = name_messages(chat)
    marked = [mark_message(message, own, marks) for message, own in zip(chat, owners, strict=True)]
    marked_tools = None if given is None else [mark_tool(tool, marks) for tool in given]
    marked_papers = None if papers is None else [mark_document(one, n, marks) for n, one in enumerate(papers, 1)]
    text = render(before, given, papers, generates=True)
    pattern = render(marked[: len(before)], marked_tools, marked_papers, generates=True)
    found = find_parts(text, pattern, marks)
    parts = found or ()
    notes: tuple[str, ...] = ()
    if found is None:
        notes = ("The chat template changes messages by what they say, so where each is in the prompt is not known.",)
    notes += note_special_tokens(model.tokenizer, text, parts)
    if not answered:
        return RenderedChat(text, parts, None, notes)
    whole = render(chat, given, papers, generates=False)
    full_pattern = render(marked, marked_tools, marked_papers, generates=False)
    answer = find_answer(text, whole, full_pattern, marks)
    if answer is None:
        answer = join_message(chat[-1])
        notes += ("The template writes an answer differently from its prompt; the text of the last message is used.",)
    return RenderedChat(text, parts, answer, notes)


def find_special_text(tokenizer: Any, text: str) -> str | None:
    """The first special token that is written in a text."""
    found = [token for token in tokenizer.all_special_tokens if len(token) > 1 and token in text]
    return min(found, key=text.index, default=None)


def note_special_tokens(tokenizer: Any, text: str, parts: Sequence[NamedPart]) -> tuple[str, ...]:
    """A note for every part that says a special token: the model reads it as one, as in a prompt injection."""
    notes = []
    for part in parts:
        token = find_special_text(tokenizer, text[slice(*part.characters)])
        if token is not None:
            notes.append(f"{part.name} contains {token!r}, which the tokenizer reads as a special token.")
    return tuple(notes)


# --- what is given ----------------------------------------------------------------------------------------------------


def check_template(model: "Model") -> None:
    if not getattr(model.tokenizer, "chat_template", None):
        raise InputError(
            f"The tokenizer of {model.name} has no chat template, so how messages become a prompt is not known. Write "
            "the prompt as a text and use Prompt.from_text(model, text), or set tokenizer.chat_template."
        )


def is_template_error(error: Exception) -> bool:
    """Whether the template itself failed, and not code of ours or the machine."""
    return type(error).__module__.startswith("jinja2") or isinstance(error, TypeError | KeyError | ValueError)


def check_messages(messages: Any) -> list[dict[str, Any]]:
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


def check_documents(documents: Any) -> list[dict[str, Any]]:
    if not isinstance(documents, Sequence) or not all(isinstance(one, Mapping) for one in documents):
        raise InputError('documents must be a list of dictionaries such as {"title": "Paris", "text": "..."}.')
    return [dict(one) for one in documents]


def check_tools(tools: Any) -> list[Any]:
    listed = list_entries(tools)
    if listed is None:
        raise InputError(f"tools must be a list of JSON schemas or functions, got {type(tools).__name__}.")
    return listed


def as_tool_definition(tool: Any) -> dict[str, Any]:
    """The JSON schema of a tool; that of a function is read from its docstring by transformers."""
    if isinstance(tool, Mapping):
        return dict(tool)
    if callable(tool):
        from transformers.utils import get_json_schema

        return get_json_schema(tool)
    raise InputError(f"A tool must be a JSON schema or a function, got {type(tool).__name__}.")


def refuse_private_characters(given: Any) -> None:
    if any(OPEN in text or CLOSE in text for text in list_texts(given)):
        raise InputError(
            f"A message contains the private-use character {OPEN!r} or {CLOSE!r}, which marks messages here. Remove it."
        )


def list_texts(value: Any) -> list[str]:
    """All texts inside lists and dictionaries."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for one in inside for text in list_texts(one)]


# --- marks instead of texts -------------------------------------------------------------------------------------------


def name_messages(chat: Sequence[Mapping[str, Any]]) -> list[Owner]:
    """Who each message is from; numbered where a role occurs more than once."""
    calls = {call.get("id"): find_call_name(call) for message in chat for call in list_calls(message)}
    names = []
    for message in chat:
        kind = ROLES.get(message["role"], message["role"])
        tool = message.get("name") or calls.get(message.get("tool_call_id"), "")
        names.append((f"tool result {tool}".strip() if kind == "tool" else kind, kind))
    counts, seen = Counter(names), Counter[tuple[str, str]]()
    owners = []
    for name, kind in names:
        seen[name, kind] += 1
        owners.append(Owner(f"{name} {seen[name, kind]}" if counts[name, kind] > 1 else name, kind))
    return owners


def list_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, Sequence) else []


def find_call_name(call: Mapping[str, Any]) -> str:
    inner = call.get("function", call)
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def mark_message(message: Mapping[str, Any], owner: Owner, marks: Marks) -> dict[str, Any]:
    """The message with marks for its texts, in the order in which templates write them."""
    marked = dict(message)
    number = owner.name.removeprefix(owner.kind)
    thinking = Owner(f"thinking{number}", "thinking")
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(name), str):
            marked[name] = marks.put(message[name], thinking)
    content = message.get("content")
    if isinstance(content, str):
        marked["content"] = mark_content(content, owner, thinking, marks)
    elif isinstance(content, list):
        marked["content"] = [dict(part) | {"text": marks.put(part["text"], owner)} for part in content]
    if calls := list_calls(message):
        marked["tool_calls"] = [mark_call(call, marks) for call in calls]
    return marked


def mark_content(content: str, owner: Owner, thinking: Owner, marks: Marks) -> str:
    """A text with the thinking inside it marked apart; its tags stay, since templates look for them."""
    if owner.kind != "assistant" or "</think>" not in content:
        return marks.put(content, owner)
    first = content.find("</think>") if "<think>" not in content.partition("</think>")[0] else -1
    parts, is_thinking = [], first >= 0  # some templates write the opening tag into the prompt
    for part in THINKING.split(content):
        if part in ("<think>", "</think>"):
            is_thinking = part == "<think>"
            parts.append(part)
        else:
            parts.append(marks.put(part, thinking if is_thinking else owner))
    return "".join(parts)


def mark_call(call: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    owner = Owner(f"tool call {find_call_name(call)}".strip(), "tool call", is_json=True)
    inner = call.get("function", call)
    written = {name: inner[name] for name in ("name", "arguments", "parameters") if name in inner}
    inner = dict(inner) | mark_texts(written, owner, marks)
    return dict(call) | {"function": inner} if "function" in call else inner


def mark_tool(tool: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    inner = tool.get("function", tool)
    name = str(inner.get("name", "")) if isinstance(inner, Mapping) else ""
    owner = Owner(f"tool definition {name}".strip(), "tool definition", is_json=True)
    texts = {key: inner[key] for key in ("name", "description") if isinstance(inner.get(key), str)}
    marked = dict(inner) | {key: marks.put(text, owner) for key, text in texts.items()}
    return dict(tool) | {"function": marked} if "function" in tool else marked


def mark_document(document: Mapping[str, Any], number: int, marks: Marks) -> dict[str, Any]:
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


def locate_marks(text: str, pattern: str, marks: Marks) -> list[tuple[Owner, int, int]] | None:
    """Who wrote which characters of the text; None if the text is not the pattern with the texts put in."""
    pieces = MARK.split(pattern)
    literals, numbers = pieces[::2], [int(name.translate(FROM_DIGITS)) for name in pieces[1::2]]
    at = len(literals[0])
    if not text.startswith(literals[0]):
        return None
    found = []
    for number, literal in zip(numbers, literals[1:], strict=True):
        forms = [write(marks.texts[number]) for write in WRITTEN]
        form = next((one for one in forms if text.startswith(one + literal, at)), None)
        if form is None:
            return None
        found.append((marks.owners[number], at, at + len(form)))
        at += len(form) + len(literal)
    return found if at == len(text) else None


FROM_DIGITS = {ord(mark): chr(digit) for digit, mark in DIGITS.items()}


def find_parts(text: str, pattern: str, marks: Marks) -> tuple[NamedPart, ...] | None:
    """The parts of the text in order; neighbouring texts of one owner are one part."""
    runs = find_runs(text, pattern, marks)
    if runs is None:
        return None
    owners = list({id(owner): owner for owner, _, _ in runs}.values())
    names = number_names(owners)
    return tuple(NamedPart(names[id(owner)], owner.kind, (start, end)) for owner, start, end in runs)


def find_runs(text: str, pattern: str, marks: Marks) -> list[tuple[Owner, int, int]] | None:
    located = locate_marks(text, pattern, marks)
    if located is None:
        return None
    runs: list[tuple[Owner, int, int]] = []
    for owner, start, end in located:
        if runs and runs[-1][0] is owner:
            runs[-1] = (owner, runs[-1][1], end)
        else:
            runs.append((owner, start, end))
    for i, (owner, start, end) in enumerate(runs):
        if owner.is_json:
            after, before = runs[i + 1][1] if i + 1 < len(runs) else len(text), runs[i - 1][2] if i else 0
            runs[i] = (owner, *extend_to_object(text, start, end, (before, after)))
    return runs


def number_names(owners: Sequence[Owner]) -> dict[int, str]:
    """The name of each owner; numbered where several calls of a tool have the same name."""
    counts, seen = Counter(owner.name for owner in owners), Counter[str]()
    names = {}
    for owner in owners:
        seen[owner.name] += 1
        names[id(owner)] = f"{owner.name} {seen[owner.name]}" if counts[owner.name] > 1 else owner.name
    return names


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
    runs = find_runs(whole, pattern, marks)
    if runs is None or not whole.startswith(prompt):
        return None
    end = max((end for _, _, end in runs if end > len(prompt)), default=None)
    return None if end is None else whole[len(prompt) : end]


def join_message(message: Mapping[str, Any]) -> str:
    """The text of a message without a template."""
    content = message.get("content")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or [])
    thinking = message.get("reasoning_content")
    return f"<think>\n{thinking}\n</think>\n\n{text}" if isinstance(thinking, str) and thinking.strip() else text
