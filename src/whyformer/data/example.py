"""Example: one input with its ground truth. Data: many examples, and the problems with those that cannot be used."""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.paths import is_file_path
from whyformer.errors import InputError

TextSpan = tuple[int, int]
Cells: TypeAlias = Mapping[Any, Any]  # the cells of a table by the name of their column
Wanted: TypeAlias = Mapping[str, Hashable]  # the name of a column for each role that the caller gave
DataError = partial(InputError, code="E_DATA")
WrongOption = partial(InputError, code="E_OPTION")
# By label, or in the order of the labels 0, 1, ...
ClassNames: TypeAlias = (
    Mapping[str, str | int] | Mapping[int, str | int] | Mapping[str | int, str | int] | Sequence[str]
)


@dataclass(frozen=True)
class LazyContent:
    """Content that is loaded when it is needed."""

    load: Callable[[], Any]
    mark: str  # identifies the content without loading it; part of the fingerprint of the data


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Example:
    """One input and its ground truth.

    mask: where the object is, in the original image: a path, or [height width] of 1 (object), 0 (background) and
    -1 (ignored). rationale: spans of characters that annotators marked as evidence; empty if they marked nothing, None
    if the example was not annotated.
    """

    name: str
    content: Any  # a path, image, text, tensor, dictionary of tensors, or LazyContent
    label: int | str | None = None
    mask: Any = None
    rationale: tuple[TextSpan, ...] | None = None

    def load(self) -> Any:
        return self.content.load() if isinstance(self.content, LazyContent) else self.content

    def load_mask(self) -> Any:
        return self.mask.load() if isinstance(self.mask, LazyContent) else self.mask


@dataclass(frozen=True)
class Problem:
    """A row or file that cannot be used, or not fully: where it is, and why."""

    place: str
    reason: str
    is_lost: bool = field(default=True, compare=False, repr=False)  # there is no example; else only part is unusable
    position: int = field(default=-1, compare=False, repr=False)  # among all examples and lost rows; -1 if unknown

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Data:
    """The examples of a data set, and its problems."""

    name: str
    examples: tuple[Example, ...]
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    mask_values: str | Mapping[int, int] = "binary"  # what the values in a mask mean, see masks.py
    notes: tuple[str, ...] = ()  # what a reader should know about all of it, such as columns that are not used

    def __len__(self) -> int:
        return len(self.examples)

    def sample(self, count: int | None, seed: int = 0) -> "Data":
        """`count` examples, sampled at random, in their original order; all of them if there are fewer."""
        if count is None:
            return self
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise WrongOption(f"The number of examples must be a whole number, got {count!r}.")
        if count < 1:
            raise WrongOption(f"The number of examples must be >= 1, got {count}.")
        if count >= len(self):
            return self
        chosen = sorted(Random(seed).sample(range(len(self)), int(count)))
        return replace(self, examples=tuple(self.examples[i] for i in chosen))

    def rename_classes(self, classes: "ClassNames") -> "Data":
        """Replace labels by other names or numbers; labels that are not in `classes` stay.

        classes: by label, {"POS": "positive", 0: "negative"}; or the names of the labels 0, 1, 2, ...
        """
        names = classes if isinstance(classes, Mapping) else dict(enumerate(classes))
        by_text = {str(label): name for label, name in names.items()}
        renamed = [replace(example, label=by_text.get(str(example.label), example.label)) for example in self.examples]
        present = {str(example.label) for example in self.examples}
        absent = [label for label in by_text if label not in present] if isinstance(classes, Mapping) else []
        note = f"No label is {', '.join(map(repr, absent[:5]))}, which classes= names."
        return replace(self, examples=tuple(renamed), notes=(*self.notes, *([note] if absent else [])))

    def fingerprint(self) -> str:
        """A hash of every input, label, mask and rationale, in order."""
        digest = hashlib.sha256()
        for example in self.examples:
            contents = map(fingerprint_content, (example.content, example.mask))
            for part in (example.name, repr(example.label), *contents, repr(example.rationale)):
                digest.update(f"{len(part)}:{part};".encode(errors="surrogatepass"))
        return digest.hexdigest()


def fingerprint_content(content: Any) -> str:
    """A text that identifies the content."""
    match content:
        case None:
            return "nothing"
        case LazyContent():
            return content.mark
        case str() if not is_file_path(content):
            return content
        case str() | os.PathLike():
            return fingerprint_file(Path(content))
        case Image.Image():
            return f"{content.mode}{content.size}{hashlib.sha256(content.tobytes()).hexdigest()}"
        case Tensor():
            return f"{content.dtype}{fingerprint_tensor(content)}"
        case np.ndarray():
            return f"{content.dtype}{content.shape}{hashlib.sha256(content.tobytes()).hexdigest()}"
        case Mapping():
            return ",".join(f"{name}={fingerprint_content(value)}" for name, value in sorted(content.items()))
    return repr(content)


def fingerprint_file(path: Path) -> str:
    """The size of a file and a hash of all its bytes.

    Version 0.1 hashed the first MiB only; for files that are not larger, the result is the same.
    """
    if not is_file_path(path):
        return "unreadable: not a regular file"  # opening a pipe would block for ever
    try:
        with open(path, "rb") as file:
            return f"{os.fstat(file.fileno()).st_size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def collect_examples(name: str, items: Iterable[Example | Problem]) -> Data:
    """Data from what a reader yields: examples and problems."""
    examples: list[Example] = []
    problems: list[Problem] = []
    lost = 0
    for item in items:
        if isinstance(item, Example):
            examples.append(item)
        else:
            problems.append(replace(item, position=len(examples) + lost) if item.is_lost else item)
            lost += item.is_lost
    return Data(name, tuple(examples), tuple(problems))


def join_words_with_spans(words: Sequence[str]) -> tuple[str, list[TextSpan]]:
    """The words joined by spaces, and the span of each."""
    ends = accumulate(len(word) + 1 for word in words)
    return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]


def join_marked_spans(spans: Sequence[TextSpan], marks: Sequence[float]) -> tuple[TextSpan, ...]:
    """The spans that are marked; adjacent spans are merged."""
    merged: list[TextSpan] = []
    for (start, end), marked in zip(spans, marks, strict=True):
        if marked and merged and start - merged[-1][1] <= 1 and (start, end) != merged[-1]:
            merged[-1] = (merged[-1][0], end)
        elif marked:
            merged.append((start, end))
    return tuple(merged)
