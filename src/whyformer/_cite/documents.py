"""What cite() is given, as a prompt with an answer and documents: a text, messages, a Prompt or a record of a log."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from typing_extensions import TypeIs

from whyformer._explain.decoding import refuse_other_prompt
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


def choose_unit(prompt: Prompt, by: SplitBy | Sequence[Region] | None) -> SplitBy | Sequence[Region]:
    """What the prompt is split into: by default its documents if it has several, else its passages."""
    if by is not None:
        return by
    return "document" if len(prompt.list_documents()) > 1 else "passage"


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
