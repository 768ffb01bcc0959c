"""What the page sends, as inputs and targets of the library."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from PIL import Image

from whyformer._engine import Answer, TargetKind, TargetLike
from whyformer._model import EncodedBatch, InputLike, Model, TextPair
from whyformer._model.prompt import Prompt
from whyformer.errors import InputError
from whyformer.targets import is_target_text, parse

Fields = dict[str, Any]  # a body that was checked by bodies.py, as plain values
Value = TypeVar("Value")


class InputMemory:
    """What was last computed about inputs, so that the next question about the same one is quick."""

    def __init__(self, most: int = 12) -> None:
        self.most = most
        self._values: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def recall(self, what: str, given: Fields, make: Callable[[], Value]) -> Value:
        """What is known under this name about this input, or else what `make` returns."""
        key = (what, json.dumps(given, sort_keys=True))
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        while len(self._values) > self.most:
            self._values.popitem(last=False)
        found: Value = self._values[key]
        return found


@dataclass(frozen=True)
class PageQuestion:
    """A body with the images that it names."""

    model: Model
    body: Fields
    images: Mapping[str, Image.Image]
    memory: InputMemory = field(default_factory=InputMemory)

    @property
    def inputs(self) -> InputLike:
        return self.recall("inputs", lambda: read_input(self.model, self.body["input"], self.images))

    @property
    def encoded(self) -> EncodedBatch:
        """The input as the model reads it, with its answer if there is one."""
        return self.recall("encoded", lambda: self.model.encode(self.inputs))

    @property
    def asked(self) -> EncodedBatch:
        """The input without its answer, after which a language model predicts."""
        return self.recall("asked", lambda: encode_question(self.model, self.inputs))

    @property
    def prompt(self) -> Prompt:
        """The input, of a language model."""
        return read_given_prompt(self.model, self.body["input"])

    def recall(self, what: str, make: Callable[[], Value]) -> Value:
        return self.memory.recall(what, self.body["input"], make)


def encode_question(model: Model, inputs: InputLike) -> EncodedBatch:
    return model.encode(inputs.without_answer() if isinstance(inputs, Prompt) else inputs)


def read_input(model: Model, given: Fields, images: Mapping[str, Image.Image]) -> InputLike:
    """An image, a text, a pair or a prompt; what the model cannot read is refused in words."""
    if given["image"] is not None:
        refuse_wrong_kind(model, "image", "an image")
        return images[given["image"]]
    if given["text"] is None:
        return read_given_prompt(model, given)
    refuse_wrong_kind(model, "text", "a text")
    if given["second"] is not None:
        return TextPair(given["text"], given["second"])
    return {"text": given["text"]}  # even where there is a file of that name


def refuse_wrong_kind(model: Model, kind: str, what: str) -> None:
    if model.kind != kind:
        taken = {"image": "images", "text": "texts", "tensors": "tensors"}[model.kind]
        raise InputError(f"{model.name} takes {taken}, but it was given {what}. Choose another model.")


def read_given_prompt(model: Model, given: Fields) -> Prompt:
    """A prompt or a chat, with its answer if there is one."""
    refuse_wrong_kind(model, "text", "a prompt")
    if given["log"] is not None:
        return Prompt.from_log(model, given["log"])
    if given["messages"] is not None:
        return Prompt.from_messages(model, given["messages"], answer=given["answer"] or None)
    if given["prompt"] is None:
        raise InputError("A language model needs a prompt or a chat.")
    return Prompt.from_text(model, given["prompt"], given["answer"] or None)


def read_target(model: Model, word: int | str | None) -> TargetLike:
    """A class by index or label, a token, or a target in the notation of whyformer.targets."""
    if isinstance(word, str) and is_target_text(word, model.labels or ()):
        target: TargetKind = parse(word)
        return target
    return word


def read_span(span: Fields | None, target: TargetLike) -> TargetLike:
    """The characters of the answer that were selected, or the target."""
    if span is None:
        return target
    return Answer((span["start"], span["stop"]), unit="character")
