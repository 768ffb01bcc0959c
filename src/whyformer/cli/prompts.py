"""The prompt of a language model from the command line: a text, a file, a chat as JSON, or the tokens of another engine.

    cite passages.txt --answer "Lisbon"
    cite --messages chat.json        [{"role": "user", "content": "..."}, ...], or {"messages": [...], "tools": [...]}
    cite --tokens log.json           {"prompt_token_ids": [...], "token_ids": [...]}, as in a log of vLLM
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli.gathering import TEXT_SUFFIXES, is_existing_file, read_text_file
from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._model.model import Model
    from whyformer._model.prompt import Prompt

PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The text of the prompt, or a .txt or .md file with it.", show_default=False),
]
AnswerOption = Annotated[
    str | None,
    typer.Option("--answer", metavar="TEXT", help="The answer; by default the model answers itself."),
]
MessagesOption = Annotated[
    Path | None, typer.Option("--messages", metavar="FILE", help="A chat as JSON, instead of PROMPT.")
]
TokensOption = Annotated[
    Path | None,
    typer.Option(
        "--tokens", metavar="FILE", help="JSON with prompt_token_ids and token_ids, as from vLLM, instead of PROMPT."
    ),
]


def read_prompt(
    model: "Model", text: str | None, messages: Path | None, tokens: Path | None, answer: str | None
) -> "Prompt":
    """The prompt that the command line names, with its answer if there is one."""
    from whyformer._model.prompt import Prompt

    given = [name for name, value in (("PROMPT", text), ("--messages", messages), ("--tokens", tokens)) if value]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"Pass one of PROMPT, --messages and --tokens, got {got}.", code="E_USAGE")
    if messages is not None:
        chat = read_json_file(messages)
        facts = {"messages": chat} if isinstance(chat, list) else chat
        refuse_unknown_keys(messages, facts, ("messages", "tools", "documents", "answer"), ("messages",))
        given_answer = facts.pop("answer", None) if answer is None else answer
        return Prompt.from_messages(model, facts.pop("messages"), answer=given_answer, **facts)
    if tokens is not None:
        facts = read_json_file(tokens)
        refuse_unknown_keys(tokens, facts, ("prompt_token_ids", "token_ids", "text"), ("prompt_token_ids",))
        if answer is not None:
            raise InputError("--tokens has the answer as token_ids. Leave out --answer.", code="E_USAGE")
        return Prompt.from_tokens(model, facts["prompt_token_ids"], facts.get("token_ids", ()), facts.get("text"))
    assert text is not None
    is_file = is_existing_file(text) and text.lower().endswith(TEXT_SUFFIXES)
    return Prompt.from_text(model, read_text_file(text) if is_file else text, answer)


def read_json_file(path: Path) -> Any:
    try:
        return json.loads(read_text_file(str(path)))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}.", code="E_DATA") from None


def refuse_unknown_keys(path: Path, facts: Any, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    if isinstance(facts, dict) and set(needed) <= set(facts) <= set(known):
        return
    got = f"the keys {', '.join(map(str, facts)) or 'none'}" if isinstance(facts, dict) else type(facts).__name__
    raise InputError(
        f"{str(path)!r} must be a JSON object with {', '.join(known)} ({', '.join(needed)} is required), got {got}.",
        code="E_DATA",
    )
