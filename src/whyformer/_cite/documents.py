"""What cite() is given, as a prompt with an answer and documents: a text, messages, a Prompt or a record of a log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from typing_extensions import TypeIs

from whyformer._cite.layouts import find_laid_out, read_document_text
from whyformer._cite.sources import list_possible_sources
from whyformer._explain.decoding import as_prompt
from whyformer._model import Model, PromptLike
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy, add_answer
from whyformer._plain.json_value import JsonValue
from whyformer._plain.progress import show_progress
from whyformer.errors import InputError


def make_cited_prompt(
    model: Model,
    prompt: PromptLike | Mapping[str, JsonValue],
    answer: str | Sequence[int] | None = None,
    documents: Sequence[DocumentLike] | None = None,
) -> Prompt:
    """The prompt with an answer, and with the documents as regions that have their ids and metadata."""
    documents, skipped = skip_empty(documents)
    if isinstance(prompt, Mapping):
        made = Prompt.from_log(model, prompt)
        made = made if documents is None else made.with_documents(documents)
    else:
        made = as_prompt(model, prompt, documents)
    if answer is not None:
        if made.answer:
            raise InputError("The prompt has an answer already. Leave out answer=, or pass prompt.without_answer().")
        made = add_answer(model, made, answer)
    if not made.answer and isinstance(prompt, Prompt):
        raise InputError(
            "The answer of this Prompt is empty. A model trained on chats may answer a plain text with nothing: give "
            "generate() a list of messages, [{'role': 'user', 'content': ...}], or pass answer=... to cite."
        )
    if not made.answer:
        raise InputError(
            "The prompt has no answer to cite sources for. Pass answer=..., or a Prompt with what the model answers: "
            "generate(model, prompt)."
        )
    return replace(made, notes=(*made.notes, *skipped))


def choose_unit(prompt: Prompt, by: SplitBy | None, within: Region | str | None = None) -> SplitBy:
    """What the prompt is split into: by default its documents if it has several, else its passages as they are laid
    out (layouts.py), else paragraphs or lines."""
    if by is not None:
        return by
    if len(prompt.list_documents()) > 1:
        return "document"
    laid_out = None if within is not None else find_laid_out(prompt, partial(list_possible_sources, prompt, "passage"))
    return laid_out or "passage"


def skip_empty(
    documents: Sequence[DocumentLike] | None,
) -> tuple[Sequence[DocumentLike] | None, tuple[str, ...]]:
    """The documents that have a text, and a note on those that have none."""
    listed = enumerate(documents, 1) if isinstance(documents, list | tuple) else ()
    empty = [number for number, one in listed if read_document_text(one) == ""]
    if documents is None or not empty or len(empty) == len(documents):
        return documents, ()
    numbers = ", ".join(map(str, empty))
    note = f"Of the documents passed, number {numbers} has no text and was skipped; the others are numbered without it."
    return [one for number, one in enumerate(documents, 1) if number not in empty], (note,)


# --- many -------------------------------------------------------------------------------------------------------------

Found = TypeVar("Found")
ManyPrompts: TypeAlias = list[str] | list[Prompt] | list[list[Mapping[str, JsonValue]]]


def is_list_of_prompts(prompt: object) -> TypeIs[ManyPrompts]:
    """Rather than the messages of one chat, which are dictionaries with a role."""
    if isinstance(prompt, str | Mapping | Prompt) or not isinstance(prompt, Sequence) or not prompt:
        return False
    is_chat = any(isinstance(one, Mapping) and {"role", "content"} & set(one) for one in prompt)
    return not is_chat and all(isinstance(one, str | Prompt | list | Mapping) for one in prompt)


def refuse_shared_answer(*given: object) -> None:
    if any(one is not None for one in given):
        raise InputError(
            "answer=, documents= and select= are for one prompt. Pass prompts that have theirs: Prompt.from_text("
            'model, text, answer, documents=...), or records {"prompt": ..., "documents": ..., "answer": ...}.',
            code="E_OPTION",
        )


def cite_each(cite_one: Callable[..., Found], prompts: Sequence[object]) -> list[Found]:
    """What is found of each prompt; an error says which prompt it is about."""
    found = []
    with show_progress(len(prompts), "citing") as progress:
        for number, one in enumerate(prompts, 1):
            try:
                found.append(cite_one(one))
            except InputError as error:
                raise InputError(f"Prompt {number} of {len(prompts)}: {error}", code=error.code) from None
            progress.advance()
    return found
