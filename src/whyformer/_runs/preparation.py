"""Prepare examples for a model: load the input, cut long texts, convert labels, masks and rationales; why one fails."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._explain.sharing import raise_if_out_of_memory
from whyformer._model import EncodedBatch, Model, TextPair, as_image, is_text_pair, read_arrays, tokenize_text
from whyformer.data import Data, Example
from whyformer.data.masks import align_mask, read_mask
from whyformer.errors import InputError
from whyformer.metrics._registry import Rationale

MAX_REASON_LENGTH = 300  # characters


def reason_of(error: Exception) -> str:
    """The message of an error; raises the error if memory ran out, because that is not the fault of an example."""
    raise_if_out_of_memory(error)
    message = " ".join(str(error).split()) or "no reason given"
    kind = "" if isinstance(error, InputError) or hasattr(error, "exit_code") else f"{type(error).__name__}: "
    return f"{kind}{message}"[:MAX_REASON_LENGTH]


KindOfInput = Literal["images", "texts"]
NOTE_SEPARATOR = "; "  # between two notes on an example


@dataclass(frozen=True, eq=False)
class PreparedExample:
    """An example as the model takes it, with its ground truth in the terms of the model."""

    place: int  # in the data
    name: str
    content: Any = None
    label: int = -1
    mask: np.ndarray | None = None
    rationale: Rationale | None = None
    missing: Mapping[str, str] | None = None  # why there is no label, mask or rationale
    failure: str | None = None  # why it cannot be explained at all
    note: str = ""

    def has_truth(self, truth: str) -> bool:
        return {"label": self.label >= 0, "mask": self.mask is not None, "rationale": self.rationale is not None}[truth]

    def why_missing(self, truth: str) -> str:
        return (self.missing or {}).get(truth, f"there is no {truth}")


def prepare_example(model: Model, data: Data, place: int) -> PreparedExample:
    """Load and convert one example; if its content cannot be loaded, `failure` has the reason."""
    example = data.examples[place]
    missing: dict[str, str] = {}
    label = find_class_index(model, example, missing)
    try:
        content = read_arrays(example.load(), are_images=model.kind == "image")
        if model.kind == "image" and not isinstance(content, Tensor | Mapping):
            content = as_image(content)
    except Exception as error:
        return PreparedExample(place, example.name, label=label, failure=reason_of(error))
    is_foreign = example.label is not None and "label" in missing
    notes = ["with a label that is none of the model's classes"] if is_foreign else []
    if model.kind == "text" and isinstance(content, str | TextPair):
        shorter = cut_to_fit(model, content)
        notes += describe_cut(model, content, shorter)
        content = shorter
    return PreparedExample(
        place,
        example.name,
        content,
        label,
        prepare_mask(model, data, example, content, missing),
        prepare_rationale(follow_cut(example, content), missing),
        missing,
        note=NOTE_SEPARATOR.join(notes),
    )


def find_class_index(model: Model, example: Example, missing: dict[str, str]) -> int:
    """The index of the true class; -1 if there is none, with the reason in `missing`."""
    if example.label is None:
        missing["label"] = "there is no label"
        return -1
    if isinstance(example.label, int):
        if model.labels is not None and example.label >= len(model.labels):
            missing["label"] = f"the label {example.label} is none of the model's {len(model.labels)} classes"
            return -1
        return example.label
    indices = {normalise_class_name(label): i for i, label in enumerate(model.labels or ())}
    index = indices.get(normalise_class_name(example.label), -1)
    if index < 0:
        missing["label"] = f"the label {example.label!r} is none of the model's classes"
    return index


def normalise_class_name(label: str) -> str:
    """Ignore case, underscores and hyphens: folders are called great_pyrenees, classes Great Pyrenees."""
    return " ".join(label.replace("_", " ").replace("-", " ").casefold().split())


def describe_cut(model: Model, content: str | TextPair, shorter: str | TextPair) -> list[str]:
    """What to say about an example that was cut; nothing if it was not."""
    if shorter == content:
        return []
    if not isinstance(content, TextPair):
        return [f"cut to {model.trained_length} tokens"]
    cut = [name for name, long, short in zip(("first", "second"), content, shorter, strict=True) if short != long]
    which = f"the {cut[0]} text" if len(cut) == 1 else "both texts"
    return [f"with {which} of the pair cut, to {model.trained_length} tokens in all"]


def cut_to_fit(model: Model, content: str | TextPair) -> str | TextPair:
    """The beginning of a text, as long as the model allows; of a pair, the longer text is cut until both fit."""
    name, texts = ("the pair", content) if isinstance(content, TextPair) else ("the text", (content,))
    try:
        whole = tokenize_text(model.tokenizer, content, name)
    except InputError:
        return content  # encoding it will fail with the reason
    if model.trained_length is None or len(whole) <= model.trained_length or (len(texts) == 2 and whole.second is None):
        return content
    begin = len(content) + 1 if whole.second is None else whole.second  # of the second text, in both
    spans = [span for span in whole.spans if span is not None]  # a token without a place cannot be the last
    ends = [[end for start, end in spans if start < begin], [end - begin for start, end in spans if start >= begin]]
    room = min(len(spans), model.trained_length - sum(whole.special))
    while room >= len(texts) and all(ends[: len(texts)]):
        counts = share_room(len(ends[0]), len(ends[1]), room)
        cut = [text[: own[count - 1]] for text, own, count in zip(texts, ends, counts, strict=False)]
        shorter = TextPair(*cut) if len(texts) == 2 else cut[0]
        if len(tokenize_text(model.tokenizer, shorter, name)) <= model.trained_length:
            return shorter
        room -= 1  # tokenized on their own, the remaining words may be more pieces
    return content


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text are kept when the longer one gives up tokens first; at least one of each."""
    if first + second <= room:
        return first, second
    if min(first, second) <= room // 2:
        shorter = min(first, second)
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    return room - room // 2, room // 2


def prepare_mask(
    model: Model, data: Data, example: Example, content: Any, missing: dict[str, str]
) -> np.ndarray | None:
    """The mask aligned to the input of the model; it must have an object and a background."""
    if example.mask is None:
        missing["mask"] = "there is no mask"
        return None
    try:
        mask = align_mask(read_mask(example.load_mask(), data.mask_values), content_size_of(content), model)
    except Exception as error:
        missing["mask"] = reason_of(error)
        return None
    if not (mask == 1).any() or not (mask == 0).any():
        missing["mask"] = f"the mask has no {'object' if not (mask == 1).any() else 'background'}"
        return None
    return mask


def content_size_of(content: Any) -> tuple[int, int]:
    """Width and height of an image, or of a tensor of pixels."""
    if isinstance(content, Image.Image):
        return content.size
    tensors = content.values() if isinstance(content, Mapping) else [content]
    pixels = next((t for t in tensors if isinstance(t, Tensor) and t.dim() in (3, 4)), None)
    if pixels is None:
        raise InputError("Masks work only with images, but this input is not an image.")
    return pixels.shape[-1], pixels.shape[-2]


def follow_cut(example: Example, content: Any) -> Example:
    """The example with the pair as it was cut, its rationale moved with it; a single text keeps all its words."""
    whole = example.load()
    if example.rationale is None or not is_text_pair(content) or not is_text_pair(whole):
        return example
    first, second = (len(text) for text in content)
    begin = len(whole[0]) + 1  # of the second text, before the cut
    spans = [(start, min(end, first)) for start, end in example.rationale if start < first]
    moved = [(start - begin, min(end - begin, second)) for start, end in example.rationale if start >= begin]
    spans += [(start + first + 1, end + first + 1) for start, end in moved if start < second]
    return replace(example, content=content, rationale=tuple(spans))


def prepare_rationale(example: Example, missing: dict[str, str]) -> Rationale | None:
    """One mark for each word of the whole text, even if the model gets only its beginning.

    Of a pair, the words of both texts as `example.content` has them.
    """
    content = "\n".join(example.content) if is_text_pair(example.content) else example.content
    if example.rationale is None or not isinstance(content, str):
        missing["rationale"] = "there is no rationale"
        return None
    marks, start = [], 0
    for word in content.split():
        start = content.index(word, start)
        end = start + len(word)
        marks.append(int(any(a < end and start < b for a, b in example.rationale)))
        start = end
    if not any(marks):
        missing["rationale"] = "no word is marked as evidence"
        return None
    return Rationale(tuple(marks), "word", tuple(example.rationale))


# --- the kind of input ------------------------------------------------------------------------------------------------


def find_kind_of_input(model: Model, data: Data) -> KindOfInput | None:
    """What the examples are; for a model that takes tensors, what the first one is that it accepts."""
    if model.kind != "tensors":
        return "images" if model.kind == "image" else "texts"
    for place in range(len(data)):
        example = prepare_example(model, data, place)
        try:
            return classify_batch(model.encode([example.content]))
        except Exception as error:
            reason_of(error)  # its rows will say why; running out of memory stops the run
    return None


def classify_batch(encoded: EncodedBatch) -> KindOfInput | None:
    if encoded.inputs[encoded.main].dim() == 4:
        return "images"
    return "texts" if encoded.token_mask is not None else None
