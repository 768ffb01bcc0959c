"""Prompts on the command line: a text, a text file, the messages of a chat, or what another engine logged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whyformer.cli.gathering import read_if_text_file, read_text_file
from whyformer.errors import InputError

if TYPE_CHECKING:
    from whyformer._model import Model
    from whyformer._model.prompt import DocumentLike, Prompt

DEFAULT_LANGUAGE_MODEL = "demo/decoder"


@dataclass(frozen=True)
class PromptSource:
    """The options that say what a language model read and answered."""

    words: list[str] | None = None
    prompt: str | None = None
    answer: str | None = None
    messages: str | None = None
    tokens: str | None = None

    @property
    def files(self) -> list[str]:
        """What was typed or is read, and must not be overwritten."""
        return [*(self.words or []), *(file for file in (self.prompt, self.messages, self.tokens) if file is not None)]

    @property
    def is_given(self) -> bool:
        return any(one is not None for one in (self.prompt, self.answer, self.messages, self.tokens))

    def check(self, takes: str = "one text, --prompt FILE, --messages FILE or --tokens FILE") -> None:
        """Refuse options that contradict each other, before a model is opened. takes: what the command accepts."""
        files = {"--prompt": self.prompt, "--messages": self.messages, "--tokens": self.tokens}
        given = [option for option, file in files.items() if file is not None] + ["INPUT"] * bool(self.words)
        if len(given) != 1 or len(self.words or []) > 1:
            texts = f"{len(self.words or [])} texts"
            found = " and ".join(given) if len(given) > 1 else texts if given else "nothing"
            raise InputError(f"A prompt is {takes}, got {found}. See whyformer --help.", code="E_USAGE")
        if self.tokens is not None and self.answer is not None:
            raise InputError("--tokens has the answer in its file. Leave --answer out.", code="E_USAGE")

    def make_prompt(self, model: "Model", documents: "Sequence[DocumentLike] | None" = None) -> "Prompt":
        from whyformer._model.prompt import Prompt

        if self.messages is not None or self.tokens is not None:
            return make_logged(model, self.messages or self.tokens or "", self.answer, documents)
        if self.prompt is not None:
            text = read_text_file(self.prompt)
            return Prompt.from_text(model, text, self.answer, special=True, documents=documents)
        text = read_if_text_file((self.words or [""])[0])
        return Prompt.from_text(model, text, self.answer, documents=documents)


def make_logged(
    model: "Model", path: str, answer: str | None, documents: "Sequence[DocumentLike] | None" = None
) -> "Prompt":
    """The prompt in a JSON file: a list of messages, or a record with them, with token ids or with texts."""
    from whyformer._model.prompt import Prompt, add_answer

    try:
        record = json.loads(read_text_file(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path!r} is not valid JSON: {str(error)[:100]}.") from None
    if isinstance(record, list):
        return Prompt.from_messages(model, record, answer=answer, documents=documents)
    if documents is not None and isinstance(record, dict):
        record = {**record, "documents": documents}
    prompt = Prompt.from_log(model, record)
    return prompt if answer is None else add_answer(model, prompt.without_answer(), answer)
