"""What cite() is given, as a prompt with an answer and documents: a text, messages, a Prompt or a record of a log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from typing_extensions import TypeIs

from whyformer._cite.layouts import find_laid_out
from whyformer._cite.sources import count_sources
from whyformer._explain.decoding import refuse_other_prompt
from whyformer._model import Model, PromptLike
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy, add_answer, write_document
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
    if isinstance(documents, list | tuple):
        documents, skipped = skip_empty(documents)
        if skipped:
            made = make_cited_prompt(model, prompt, answer, documents)
            return replace(made, notes=(*made.notes, *skipped))
    if isinstance(prompt, Mapping):
        prompt = Prompt.from_log(model, prompt)
        prompt = prompt if documents is None else prompt.with_documents(documents)
    elif isinstance(prompt, str):
        prompt = Prompt.from_text(model, prompt, documents=documents)
    elif isinstance(prompt, Prompt):
        prompt = prompt if documents is None else prompt.with_documents(documents)
    else:
        refuse_other_prompt(prompt)
        prompt, answer = Prompt.from_messages(model, prompt, answer=answer, documents=documents), None
    if answer is not None:
        if prompt.answer:
            raise InputError("The prompt has an answer already. Leave out answer=, or pass prompt.without_answer().")
        prompt = add_answer(model, prompt, answer)
    if not prompt.answer:
        raise InputError(
            "The prompt has no answer to cite sources for. Pass answer=..., or a Prompt with what the model answers: "
            "generate(model, prompt)."
        )
    return prompt


def choose_unit(
    prompt: Prompt, by: SplitBy | Sequence[Region] | None, within: Region | str | None = None
) -> SplitBy | Sequence[Region]:
    """What the prompt is split into: by default its documents if it has several, else its passages as they are laid
    out (layouts.py), else paragraphs or lines."""
    if by is not None:
        return by
    if len(prompt.list_documents()) > 1:
        return "document"
    laid_out = None if within is not None else find_laid_out(prompt, partial(count_sources, prompt))
    return laid_out or "passage"


def skip_empty(documents: Sequence[DocumentLike]) -> tuple[list[DocumentLike], tuple[str, ...]]:
    """The documents that have a text, and a note on those that have none; forms that are not known stay as they are."""
    kept: list[tuple[int, DocumentLike]] = []
    empty: list[tuple[int, DocumentLike]] = []
    for number, one in enumerate(documents, 1):
        try:
            has_text = bool(str(write_document(one)["text"]).strip())
        except TypeError:
            has_text = True  # refused later
        (kept if has_text else empty).append((number, one))
    if not empty or not kept:
        return list(documents), ()
    numbers = ", ".join(str(number) for number, _ in empty)
    note = f"Of the documents passed, number {numbers} has no text and was skipped; the others are numbered without it."
    return [one for _, one in kept], (note,)


# --- many -------------------------------------------------------------------------------------------------------------

Found = TypeVar("Found")
ManyPrompts: TypeAlias = list[str] | list[Prompt] | list[list[Mapping[str, JsonValue]]]


def is_list_of_prompts(prompt: object) -> TypeIs[ManyPrompts]:
    """Rather than the messages of one chat, which are dictionaries with a role."""
    if isinstance(prompt, str | Mapping | Prompt) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return all(isinstance(one, str | Prompt | list) or is_log_record(one) for one in prompt)


def is_log_record(one: object) -> bool:
    return isinstance(one, Mapping) and not {"role", "content"} & set(one)


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
