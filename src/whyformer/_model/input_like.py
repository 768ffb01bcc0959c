"""InputLike and PromptLike: what explain() and the other verbs take as inputs, and as a prompt."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor
from typing_extensions import TypeAliasType

from whyformer._model.encoded import EncodedBatch
from whyformer._model.prompt import Prompt
from whyformer._model.text import TextPair
from whyformer._plain.json_value import JsonValue


class ColumnLike(Protocol):
    """A column of a table: a Series of pandas or polars, an array of pyarrow, a column of `datasets`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> "Iterator[OneInput]": ...


OneImage: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray
ImageOrWords: TypeAlias = OneImage | Sequence[OneImage]  # of {"image": ..., "text": ...}, {"images": [...], ...}
# A text or a path; an image; an array or tensor; two texts that are read together; a prompt; inputs by name.
OneInput: TypeAlias = (
    str | os.PathLike[str] | Image.Image | np.ndarray | Tensor | TextPair | tuple[str, str] | Prompt
    | Mapping[str, Tensor] | Mapping[str, np.ndarray] | Mapping[str, str] | Mapping[str, ImageOrWords]
)  # fmt: skip
InputLike = TypeAliasType("InputLike", OneInput | EncodedBatch | Sequence[OneInput] | ColumnLike)
# Which tokens of an answer: all, numbers, a range or slice, or a text that occurs in it.
AnswerPart: TypeAlias = int | str | slice | range | Sequence[int] | None
PromptLike: TypeAlias = str | Prompt | Sequence[Mapping[str, JsonValue]]  # a text, or the messages of a chat
