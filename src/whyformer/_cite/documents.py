"""What cite() is given, as a prompt with an answer and documents: a text, messages, a Prompt or a record of a log."""

from collections.abc import Mapping, Sequence

from whyformer._explain.decoding import refuse_other_prompt
from whyformer._model import Model, PromptLike
from whyformer._model.prompt import DocumentLike, Prompt, Region, SplitBy, add_answer
from whyformer._plain.json_value import JsonValue
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


def is_list_of_prompts(prompt: object) -> bool:
    """Rather than the messages of one chat, which are dictionaries with a role."""
    if isinstance(prompt, str | Mapping | Prompt) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return not any(isinstance(one, Mapping) and "role" in one for one in prompt)
