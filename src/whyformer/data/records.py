"""Examples from rows with named fields, such as the rows of a table."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from whyformer._model import PAIR_FIELDS, OneInput, TextPair, read_image_bytes
from whyformer._plain.paths import IMAGE_SUFFIXES, is_file_path
from whyformer.data.example import (
    Cells,
    Data,
    DataError,
    Example,
    LazyContent,
    Problem,
    TextSpan,
    Wanted,
    WrongOption,
    collect_examples,
    join_marked_spans,
    join_words_with_spans,
)
from whyformer.data.masks import read_mask_values

Record = tuple[str, Cells | Problem]  # its place, and its fields

# Usual names of columns; the first one that exists is used.
TEXT_COLUMNS = ("text", "sentence", "review", "content", "tokens", "post_tokens")
PAIR_COLUMNS = PAIR_FIELDS  # used if a table has both
IMAGE_COLUMNS = ("image", "img", "picture", "file", "path")
LABEL_COLUMNS = (
    "label", "labels", "gold_label", "class", "classification", "target", "fine_label", "sentiment", "is_duplicate",
)  # fmt: skip
RATIONALE_COLUMNS = ("rationale", "rationales", "evidence")
USUAL_COLUMNS = {
    "input": TEXT_COLUMNS + IMAGE_COLUMNS,
    "label": LABEL_COLUMNS,
    "mask": ("mask", "segmentation", "trimap"),
    "rationale": RATIONALE_COLUMNS,
    "name": ("id", "name", "post_id", "annotation_id", "idx"),
}
ANSWERS_COLUMN = "answers"  # of SQuAD, beside a question and its context
NO_LABEL = "-"  # of SNLI, where annotators do not agree
CONTENT_TYPES = (str, os.PathLike, Image.Image, Tensor, Mapping, LazyContent, TextPair)
MOST_UNUSED = 12  # columns that a note names
NO_RATIONALE = "the rationale is neither a list of marks nor a list of spans"


@dataclass(frozen=True)
class Columns:
    """The name of the column for each role."""

    input: str
    pair: str | None = None  # the second text of a pair
    label: str | None = None
    mask: str | None = None
    rationale: str | None = None
    name: str | None = None

    def names(self) -> set[Hashable]:
        """The columns that have a role."""
        return {name for name in astuple(self) if name is not None}


def note_unused_columns(unused: Iterable[Hashable]) -> tuple[str, ...]:
    """A note that names them, if there are any."""
    names = [str(name) for name in unused]
    more = f" and {len(names) - MOST_UNUSED} more" if len(names) > MOST_UNUSED else ""
    return (f"Columns not used: {', '.join(names[:MOST_UNUSED])}{more}.",) if names else ()


def choose_columns(existing: Sequence[Hashable], wanted: Wanted, source: str) -> Columns:
    """The columns asked for, else those with a usual name, in capitals or not."""
    listed = ", ".join(map(str, existing))
    for role, name in wanted.items():
        if role not in Columns.__dataclass_fields__:
            raise WrongOption(f"columns: {role!r} is not a role. Available: {', '.join(Columns.__dataclass_fields__)}.")
        if name not in existing:
            raise DataError(f"There is no column {name!r} in {source}. Available: {listed}.")
    chosen: dict[str, Any] = {role: find_usual_column(names, existing) for role, names in USUAL_COLUMNS.items()}
    chosen |= choose_pair_columns(existing, wanted) | dict(wanted)
    if chosen["input"] is None:
        raise DataError(
            f'No column of {source} has a usual name for inputs. Pass columns={{"input": ...}}. Available: {listed}.'
        )
    return Columns(**chosen)


def find_usual_column(usual: Sequence[str], existing: Sequence[Hashable]) -> Hashable:
    """The first of these names that exists; a column that differs only in capitals or spaces counts if none does."""
    alike = {name.strip().casefold(): name for name in reversed(existing) if isinstance(name, str)}
    exact = next((name for name in usual if name in existing), None)
    return exact or next((alike[name] for name in usual if name in alike), None)


def choose_pair_columns(existing: Sequence[Hashable], wanted: Wanted) -> dict[str, Hashable]:
    """The columns of two texts with usual names, if both are there and the caller did not name the input."""
    if "input" in wanted or "pair" in wanted:
        return {}
    found = ([find_usual_column([name], existing) for name in pair] for pair in PAIR_COLUMNS)
    both = next((pair for pair in found if None not in pair), None)
    if both is None:
        return {}
    has_answers = ANSWERS_COLUMN in existing and not any(name in existing for name in RATIONALE_COLUMNS)
    return {"input": both[0], "pair": both[1]} | ({"rationale": ANSWERS_COLUMN} if has_answers else {})


def read_records(
    source: str,
    read_rows: Callable[[], Iterable[Record]],
    wanted: Wanted,
    folder: Path | None = None,
    used: Iterable[Hashable] = (),
) -> Data:
    """An example from every usable row. Paths of images are relative to `folder`. used: columns in the rows' places.

    The rows are read twice, so that they need not fit into memory: the first row may lack some columns.
    """
    names = list(dict.fromkeys(name for _, row in read_rows() if not isinstance(row, Problem) for name in row))
    columns = choose_columns(names, wanted, source) if names else None
    data = collect_examples(source, (parse_record(place, row, columns, folder) for place, row in read_rows()))
    used = {*used, *(columns.names() if columns is not None else ())}
    return replace(data, notes=note_unused_columns(name for name in names if name not in used))


def parse_record(place: str, row: Cells | Problem, columns: Columns | None, folder: Path | None) -> Example | Problem:
    if isinstance(row, Problem):
        return row
    if columns is None:
        return Problem(place, "the row is empty")
    try:
        return make_example(place, row, columns, folder)
    except RowError as error:
        return Problem(place, str(error))


class RowError(Exception):
    """The reason why a row cannot be used."""


def make_example(place: str, row: Cells, columns: Columns, folder: Path | None) -> Example:
    """The example in a row; a row that cannot be used raises RowError."""
    cells: dict[Hashable, Any] = {column: read_cell_value(row.get(column)) for column in columns.names()}
    content = cells[columns.input]
    if content is None or (isinstance(content, str) and not content.strip()):
        raise RowError(f"{columns.input} is empty")
    spans: list[TextSpan] | None = None
    if isinstance(content, list) and all(isinstance(word, str) for word in content):
        content, spans = join_words_with_spans(content)
    name = cells.get(columns.name)
    name = place if name in (None, "") else str(name)
    cells[columns.rationale] = as_lists(cells.get(columns.rationale))
    if columns.pair is not None:
        return make_pair_example(name, cells, columns)
    return Example(
        name=name,
        content=check_content(resolve_image(content, folder)),
        label=parse_label(cells.get(columns.label)),
        mask=resolve_image(cells.get(columns.mask), folder, read_mask_values) if columns.mask else None,
        rationale=parse_rationale(cells[columns.rationale], content, spans),
    )


def read_cell_value(value: Any) -> Any:
    """The value of a cell: None where it is missing, and a list for a list, which pandas has as an array."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and (value.dtype.kind in "UTO" or not value.size):
        return [read_cell_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    is_missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if is_missing else value


def as_lists(value: Any) -> Any:
    """Lists in place of arrays and tensors, inside lists and dictionaries too."""
    match value:
        case np.ndarray() | Tensor():
            return as_lists(value.tolist())
        case list():
            return [as_lists(item) for item in value]
        case Mapping():
            return {name: as_lists(item) for name, item in value.items()}
    return value


def check_content(content: Any) -> Any:
    """The content, if it is something that a model can take."""
    if isinstance(content, CONTENT_TYPES) or (isinstance(content, np.ndarray) and content.dtype.kind in "biufU"):
        return content
    kind = f"a tuple of {len(content)}" if isinstance(content, tuple) else type(content).__name__
    raise RowError(f"{kind} is not a supported input")


def make_pair_example(name: str, row: Cells, columns: Columns) -> Example:
    """The example in a row with two texts, which a model reads together."""
    texts = []
    for column in (columns.input, str(columns.pair)):
        text = row.get(column)
        if isinstance(text, list) and all(isinstance(word, str) for word in text):
            text = join_words_with_spans(text)[0]
        if not isinstance(text, str) or not text.strip():
            raise RowError(f"{column} is empty" if text is None or isinstance(text, str) else f"{column} is not a text")
        texts.append(text)
    pair = TextPair(*texts)
    rationale = parse_pair_rationale(row.get(columns.rationale), pair, columns)
    return Example(name, pair, parse_label(row.get(columns.label)), rationale=rationale)


def parse_pair_rationale(value: Any, pair: TextPair, columns: Columns) -> tuple[TextSpan, ...] | None:
    """Spans of marked characters of both texts joined by a line break.

    value: spans or marks for each text by the name of its column, {"premise": [[0, 4]], "hypothesis": [0, 1]}; spans
    of, or one mark for each word of, both texts joined; or the answers of SQuAD, of which the first counts.
    """
    is_squad = columns.rationale == ANSWERS_COLUMN
    try:
        value = read_json_cell(value)
    except RowError:
        if not is_squad:
            raise
    is_answer = isinstance(value, Mapping) and "answer_start" in value
    if is_squad and not is_answer:
        return None  # answers of another kind, such as a list of texts
    if not isinstance(value, Mapping):
        return parse_rationale(value, "\n".join(pair), None)
    shift = len(pair.first) + 1
    if is_answer:
        return tuple((start + shift, end + shift) for start, end in locate_answer(value, pair.second))
    names = (columns.input, str(columns.pair))
    if unknown := [str(name) for name in value if name not in names]:
        raise RowError(f"the rationale names {unknown[0]!r}, which is not one of {', '.join(names)}")
    first, second = (parse_rationale(value.get(name), text, None) for name, text in zip(names, pair, strict=True))
    return (*(first or ()), *((start + shift, end + shift) for start, end in second or ()))


def locate_answer(answers: Cells, context: str) -> tuple[TextSpan, ...]:
    """Where the first of {"text": [...], "answer_start": [...]} is in the context; nothing if there is no answer."""
    texts, starts = answers.get("text"), answers["answer_start"]
    if not isinstance(texts, Sequence) or not isinstance(starts, Sequence) or len(texts) != len(starts):
        raise RowError("the answers need a list of texts and a list answer_start of the same length")
    if not texts:
        return ()
    if not isinstance(starts[0], int) or not isinstance(texts[0], str):
        raise RowError("the first answer is not a text and the number of a character")
    start, end = starts[0], starts[0] + len(texts[0])
    if context[start:end] != texts[0] or start < 0 or start == end:
        raise RowError(f"the answer {texts[0][:40]!r} is not at character {start} of the context")
    return ((start, end),)


def resolve_image(content: Any, folder: Path | None, read: Callable[[bytes, str], Any] = read_image_bytes) -> Any:
    """An image as Hugging Face stores it (bytes or a path), or a path relative to the table."""
    if isinstance(content, Mapping) and content.get("bytes"):
        if not isinstance(content["bytes"], bytes | bytearray | memoryview):
            raise RowError(f"the bytes of an image are of type {type(content['bytes']).__name__}")
        data = bytes(content["bytes"])
        name = str(content.get("path") or "the image")
        return LazyContent(partial(read, data, name), f"{len(data)}:{hashlib.sha256(data).hexdigest()}")
    if isinstance(content, Mapping) and content.get("path"):
        content = content["path"]
    if isinstance(content, str) and folder is not None and is_image_name(content):
        return folder / content if is_file_path(folder / content) else content
    return content


def is_image_name(text: str) -> bool:
    return len(text) < 1000 and "\n" not in text and os.path.splitext(text)[1].lower() in IMAGE_SUFFIXES


def parse_label(value: Any) -> int | str | None:
    """A class by number or name; None if it is missing or -1, which Hugging Face uses for unknown."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    match value:
        case None:
            return None
        case float() if math.isnan(value):
            return None
        case float() if not value.is_integer():
            raise RowError(f"the label {value!r} is not a class")
        case int() | float():
            return int(value) if value >= 0 else None
        case str() if re.fullmatch("-?[0-9]{1,18}", value.strip()):
            return parse_label(int(value))
        case str():
            return None if value.strip() in ("", NO_LABEL) else value.strip()
    raise RowError(f"the label is of type {type(value).__name__}, not a class")


def parse_rationale(value: Any, text: OneInput, words: Sequence[TextSpan] | None) -> tuple[TextSpan, ...] | None:
    """Spans of marked characters, from [start end] pairs or from one mark per word."""
    if (value := read_json_cell(value)) is None:
        return None
    if not isinstance(value, Sequence) or not isinstance(text, str):
        raise RowError("the rationale is not a list, or the input is not a text")
    if all(isinstance(item, int | float) for item in value):
        words = words if words is not None else split_word_spans(text)
        if len(words) != len(value):
            raise RowError(f"the rationale has {len(value)} marks for {len(words)} words")
        return join_marked_spans(words, value)
    if all(isinstance(item, Sequence) and len(item) == 2 for item in value):
        try:
            spans = tuple((int(start), int(end)) for start, end in value)
        except (TypeError, ValueError):
            raise RowError(NO_RATIONALE) from None
        if any(not 0 <= start < end <= len(text) for start, end in spans):
            raise RowError(f"the rationale has a span outside the text of {len(text)} characters")
        return spans
    raise RowError(NO_RATIONALE)


def read_json_cell(value: Any) -> Any:
    """A rationale that a table holds as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise RowError(NO_RATIONALE) from None


def split_word_spans(text: str) -> list[TextSpan]:
    """The spans of the words, which are separated by white space."""
    return [word.span() for word in re.finditer(r"\S+", text)]
