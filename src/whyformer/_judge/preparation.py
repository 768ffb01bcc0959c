"""Prepare examples for a model: load the input, cut long texts, and convert labels, masks and rationales."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._judge.failure import reason_of
from whyformer._model.image import as_image
from whyformer._model.model import Model
from whyformer._model.text import tokenize_text
from whyformer.data import Data, Example
from whyformer.data.masks import align_mask, read_mask
from whyformer.errors import InputError
from whyformer.metrics._registry import Rationale

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
        content = example.load()
        if model.kind == "image":
            content = as_image(content)
    except Exception as error:
        return PreparedExample(place, example.name, label=label, failure=reason_of(error))
    is_foreign = example.label is not None and "label" in missing
    notes = ["with a label that is none of the model's classes"] if is_foreign else []
    if model.kind == "text" and isinstance(content, str):
        shorter = cut_to_fit(model, content)
        notes += [f"cut to {model.max_length} tokens"] if shorter != content else []
        content = shorter
    return PreparedExample(
        place,
        example.name,
        content,
        label,
        prepare_mask(model, data, example, content, missing),
        prepare_rationale(example, missing),
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


def cut_to_fit(model: Model, content: str) -> str:
    """The beginning of a text, as long as the model allows."""
    try:
        pieces = tokenize_text(model.tokenizer, content, "the text")
    except InputError:
        return content  # encoding it will fail with the reason
    if model.max_length is None or len(pieces) <= model.max_length:
        return content
    ends = [span[1] for span in pieces.spans if span is not None]  # a token without a place cannot be the last
    for count in range(min(len(ends), model.max_length - sum(pieces.special)), 0, -1):
        shorter = content[: ends[count - 1]]
        if len(tokenize_text(model.tokenizer, shorter, "the text")) <= model.max_length:
            return shorter
    return content


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


def prepare_rationale(example: Example, missing: dict[str, str]) -> Rationale | None:
    """One mark for each word of the whole text, even if the model gets only its beginning."""
    if example.rationale is None or not isinstance(example.content, str):
        missing["rationale"] = "there is no rationale"
        return None
    marks, start = [], 0
    for word in example.content.split():
        start = example.content.index(word, start)
        end = start + len(word)
        marks.append(int(any(a < end and start < b for a, b in example.rationale)))
        start = end
    if not any(marks):
        missing["rationale"] = "no word is marked as evidence"
        return None
    return Rationale(tuple(marks), "word")
