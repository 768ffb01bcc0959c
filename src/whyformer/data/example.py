"""Example: one input with the truth that is known of it. Data: many of them, and what was wrong with the others."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer.errors import InputError

MAX_HASHED_BYTES = 1 << 20  # of a file that go into the fingerprint, from its beginning; its length always does

Span = tuple[int, int]


@dataclass(frozen=True)
class LazyContent:
    """Something that is read when it is needed, and what it is known by until then."""

    load: Callable[[], Any]
    mark: str


@dataclass(frozen=True, eq=False)
class Example:
    """One input and its truth.

    mask: what is the object, in the picture as a person sees it: a path or [height width] of 1 (object), 0
    (background) and -1 (not to be counted). rationale: the characters of the text that a person marked as evidence;
    empty where the person found none, None where nobody was asked.
    """

    name: str
    content: Any  # a path, picture, text, tensor or dictionary of tensors; or Later
    label: int | str | None = None
    mask: Any = None
    rationale: tuple[Span, ...] | None = None

    def load(self) -> Any:
        return self.content.load() if isinstance(self.content, LazyContent) else self.content

    def load_mask(self) -> Any:
        return self.mask.load() if isinstance(self.mask, LazyContent) else self.mask


@dataclass(frozen=True)
class Problem:
    """Something that could not be used, where it stands and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Data:
    name: str
    examples: tuple[Example, ...]
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    mask_values: str | Mapping[int, int] = "binary"  # what the numbers in a mask mean; see masks.py

    def __len__(self) -> int:
        return len(self.examples)

    def sample(self, count: int | None, seed: int = 0) -> "Data":
        """So many of the examples, drawn at random and in their old order; all if there are no more."""
        if count is None or count >= len(self):
            return self
        if count < 1:
            raise InputError(f"{count} examples are nothing to judge on. Take 1 or more.")
        places = sorted(Random(seed).sample(range(len(self)), count))
        return replace(self, examples=tuple(self.examples[i] for i in places))

    def rename_classes(self, classes: Mapping[str, str | int]) -> "Data":
        """The same with other names for labels; a label that is not named stays."""
        renamed = [replace(one, label=classes.get(str(one.label), one.label)) for one in self.examples]
        return replace(self, examples=tuple(renamed))

    def fingerprint(self) -> str:
        """A hash that changes with any input, label or truth, and with their order."""
        digest = hashlib.sha256()
        for one in self.examples:
            for part in (
                one.name,
                repr(one.label),
                fingerprint_content(one.content),
                fingerprint_content(one.mask),
                repr(one.rationale),
            ):
                digest.update(f"{len(part)}:{part};".encode(errors="surrogatepass"))
        return digest.hexdigest()


def fingerprint_content(content: Any) -> str:
    """What tells this content from another."""
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


def is_file_path(text: str) -> bool:
    """Whether a text is the path of a file here; a review of 10,000 characters is not even asked."""
    try:
        return len(text) < 4096 and Path(text).is_file()
    except (OSError, ValueError):
        return False


def fingerprint_file(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            start = file.read(MAX_HASHED_BYTES)
            return f"{os.fstat(file.fileno()).st_size}:{hashlib.sha256(start).hexdigest()}"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def collect_examples(name: str, found: Iterable[Example | Problem]) -> Data:
    """The examples of a reader, what was wrong put aside."""
    every = list(found)
    examples = tuple(one for one in every if isinstance(one, Example))
    return Data(name, examples, tuple(one for one in every if isinstance(one, Problem)))


def join_words_with_spans(words: Sequence[str]) -> tuple[str, list[Span]]:
    """The words with a blank between them, and where each stands."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


def join_marked_spans(spans: Sequence[Span], marks: Sequence[Any], gap: int = 1) -> tuple[Span, ...]:
    """The spans that are marked; neighbours become one."""
    found: list[Span] = []
    for (start, end), marked in zip(spans, marks, strict=True):
        if marked and found and start - found[-1][1] <= gap and (start, end) != found[-1]:
            found[-1] = (found[-1][0], end)
        elif marked:
            found.append((start, end))
    return tuple(found)
