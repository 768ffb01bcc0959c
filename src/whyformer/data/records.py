"""Rows with named fields, from CSV, JSON lines, Parquet or a Hugging Face data set, as examples."""

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from PIL import Image

from whyformer.data.example import (
    Data,
    Example,
    LazyContent,
    Problem,
    Span,
    collect_examples,
    join_marked_spans,
    join_words_with_spans,
)
from whyformer.errors import InputError

Record = tuple[str, Mapping[str, Any] | Problem]  # where it stands, and what it holds

# Names that people use, the first that is there is taken.
INPUT_COLUMNS = (
    "text",
    "sentence",
    "review",
    "content",
    "tokens",
    "post_tokens",
    "image",
    "img",
    "picture",
    "file",
    "path",
)
LABEL_COLUMNS = ("label", "labels", "class", "classification", "target", "fine_label", "sentiment")
MASK_COLUMNS = ("mask", "segmentation", "trimap")
RATIONALE_COLUMNS = ("rationale", "rationales", "evidence")
NAME_COLUMNS = ("id", "name", "post_id", "annotation_id", "idx")


@dataclass(frozen=True)
class Columns:
    """Which field holds what."""

    input: str
    label: str | None = None
    mask: str | None = None
    rationale: str | None = None
    name: str | None = None


def choose_columns(there: Sequence[str], wanted: Mapping[str, str], what: str) -> Columns:
    """The fields asked for, else those with a usual name."""
    for role, name in wanted.items():
        if role not in Columns.__dataclass_fields__:
            raise InputError(f"columns: {role!r} is not a role. There are: {', '.join(Columns.__dataclass_fields__)}.")
        if name not in there:
            raise InputError(f"There is no column {name!r} in {what}. There are: {', '.join(map(str, there))}.")
    usual = {
        "input": INPUT_COLUMNS,
        "label": LABEL_COLUMNS,
        "mask": MASK_COLUMNS,
        "rationale": RATIONALE_COLUMNS,
        "name": NAME_COLUMNS,
    }
    found = {role: next((n for n in names if n in there), None) for role, names in usual.items()} | dict(wanted)
    if found["input"] is None:
        raise InputError(
            f"Which column of {what} holds the inputs? There are: {', '.join(map(str, there))}. "
            'Say so: columns={"input": ...}.'
        )
    return Columns(**found)  # type: ignore[arg-type]


def read_records(what: str, rows: Iterable[Record], wanted: Mapping[str, str], folder: Path | None = None) -> Data:
    """An example from every row that can be used; paths of pictures are looked up from `folder`."""

    held = list(rows)
    there = list(dict.fromkeys(name for _, row in held if not isinstance(row, Problem) for name in row))
    columns = choose_columns(there, wanted, what) if there else None  # of all rows: the first may lack a field

    def found() -> Iterator[Example | Problem]:
        for place, row in held:
            if isinstance(row, Problem) or columns is None:
                yield row if isinstance(row, Problem) else Problem(place, "this row is empty")
                continue
            try:
                yield make_example(place, row, columns, folder)
            except RowError as error:
                yield Problem(place, str(error))

    return collect_examples(what, found())


class RowError(Exception):
    """What is wrong with one row."""


def make_example(place: str, row: Mapping[str, Any], columns: Columns, folder: Path | None) -> Example:
    content = row.get(columns.input)
    if content is None or (isinstance(content, str) and not content.strip()):
        raise RowError(f"{columns.input} is empty")
    spans: list[Span] | None = None
    if isinstance(content, list) and all(isinstance(word, str) for word in content):
        content, spans = join_words_with_spans(content)
    name = row.get(columns.name) if columns.name else None
    return Example(
        name=str(name) if name not in (None, "") else place,
        content=resolve_image(content, folder),
        label=parse_label(row.get(columns.label) if columns.label else None),
        mask=resolve_image(row.get(columns.mask), folder) if columns.mask else None,
        rationale=parse_rationale(row.get(columns.rationale) if columns.rationale else None, content, spans),
    )


def resolve_image(content: Any, folder: Path | None) -> Any:
    """The bytes of a picture as Hugging Face keeps them, or a path beside the file it stands in."""
    if isinstance(content, Mapping) and content.get("bytes"):
        data = bytes(content["bytes"])
        return LazyContent(lambda: Image.open(io.BytesIO(data)), f"{len(data)}:{hash_bytes(data)}")
    if isinstance(content, Mapping) and content.get("path"):
        content = content["path"]
    if isinstance(content, str) and folder is not None and is_image_name(content):
        return folder / content if (folder / content).is_file() else content
    return content


def is_image_name(text: str) -> bool:
    return len(text) < 1000 and "\n" not in text and os.path.splitext(text)[1].lower() in IMAGE_SUFFIXES


IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def hash_bytes(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def parse_label(value: Any) -> int | str | None:
    """A class by number or name; None where there is none, or -1, which Hugging Face writes for unknown."""
    if value is None or isinstance(value, bool):
        return int(value) if isinstance(value, bool) else None
    if isinstance(value, float):
        if value != value:
            return None
        if not value.is_integer():
            raise RowError(f"the label {value!r} is no class")
        value = int(value)
    if isinstance(value, int):
        return value if value >= 0 else None
    if not isinstance(value, str):
        raise RowError(f"the label is a {type(value).__name__}, no class")
    text = value.strip()
    if re.fullmatch("-?[0-9]{1,18}", text):
        return parse_label(int(text))
    return text or None


def parse_rationale(value: Any, text: Any, words: Sequence[Span] | None) -> tuple[Span, ...] | None:
    """Marked characters, from [start end] pairs or from one mark a word."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise RowError("the rationale is neither a list of marks nor of spans") from None
    if not isinstance(value, Sequence) or not isinstance(text, str):
        raise RowError("the rationale is no list, or there is no text it could belong to")
    if all(isinstance(one, int | float) for one in value):
        words = words if words is not None else split_word_spans(text)
        if len(words) != len(value):
            raise RowError(f"{len(value)} marks do not fit {len(words)} words")
        return join_marked_spans(words, value)
    if all(isinstance(one, Sequence) and len(one) == 2 for one in value):
        try:
            spans = tuple((int(start), int(end)) for start, end in value)
        except (TypeError, ValueError):
            raise RowError("the rationale is neither a list of marks nor of spans") from None
        if any(not 0 <= start < end <= len(text) for start, end in spans):
            raise RowError(f"the rationale points outside the text of {len(text)} characters")
        return spans
    raise RowError("the rationale is neither a list of marks nor of spans")


def split_word_spans(text: str) -> list[Span]:
    spans, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


# --- files ------------------------------------------------------------------------------------------------------------


def open_text(path: Path) -> TextIO:
    """A text file, gzipped or not, a byte order mark left out; bytes that are no UTF-8 are kept apart by surrogates."""
    raw = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[arg-type]


def read_json_lines(path: Path) -> Iterator[Record]:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield place, Problem(place, f"this is no JSON ({str(error)[:80]})")
                continue
            if has_invalid_utf8(line):
                yield place, Problem(place, "this is not UTF-8")
            else:
                yield place, row if isinstance(row, dict) else Problem(place, "this is no JSON object")


def read_delimited_rows(path: Path, delimiter: str) -> Iterator[Record]:
    """Comma- or tab-separated rows under a header; without one where the first row holds a label already."""
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
        header: list[str] | None = None
        while True:
            place = f"{path.name}:{reader.line_num + 1}"
            try:
                row = next(reader, None)
            except csv.Error as error:
                yield place, Problem(place, f"this row cannot be read ({error})")
                continue
            if row is None:
                return
            if header is None:
                header = ["text", "label"] if is_sst_row(row) else parse_header(row, path)
                if not is_sst_row(row):
                    continue
            if row:
                yield place, as_record(place, row, header)


def is_sst_row(row: Sequence[str]) -> bool:
    """A sentence and its class, with no header above: how SST-2 is passed around."""
    return len(row) == 2 and re.fullmatch("[0-9]{1,18}", row[1].strip()) is not None


def parse_header(row: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in row]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path.name} has two columns {twice[0]!r}. Rename one.")
    return names


def as_record(place: str, row: Sequence[str], header: Sequence[str]) -> Mapping[str, Any] | Problem:
    if len(row) != len(header):
        return Problem(place, f"{len(row)} cells under {len(header)} columns")
    if any(has_invalid_utf8(cell) for cell in row):
        return Problem(place, "this is not UTF-8")
    return dict(zip(header, row, strict=True))


def has_invalid_utf8(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)


def read_parquet_rows(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(256):
                for row in batch.to_pylist():
                    yield f"{path.name}:{number}", row
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is no Parquet file, or it is damaged ({str(error)[:80]}).") from None


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def is_hugging_face(source: Any) -> bool:
    """An object of `datasets`, told by what it has, so that the library need not be there."""
    return hasattr(source, "features") and hasattr(source, "column_names") and hasattr(source, "__getitem__")


def read_hugging_face(source: Any, wanted: Mapping[str, str]) -> Data:
    """Inputs are read when they are needed, so that pictures are not all held in memory."""
    what = str(getattr(getattr(source, "info", None), "dataset_name", None) or "the data set")
    columns = choose_columns(list(source.column_names), wanted, what)
    known_by = getattr(source, "_fingerprint", None)
    names = getattr((source.features or {}).get(columns.label), "names", None) if columns.label else None
    labels = list(source[columns.label]) if columns.label else [None] * len(source)

    def found() -> Iterator[Example | Problem]:
        for number in range(len(source)):
            try:
                label = parse_label(labels[number])
                if names is not None and isinstance(label, int):
                    label = names[label]
                yield make_lazy_example(source, number, columns, label, known_by)
            except (RowError, IndexError) as error:
                yield Problem(f"row {number}", str(error))

    return collect_examples(what, found())


def make_lazy_example(
    source: Any, number: int, columns: Columns, label: int | str | None, known_by: str | None
) -> Example:
    """A text is read now, a picture when its turn comes."""
    place = f"row {number}"
    is_text = type((source.features or {}).get(columns.input)).__name__ != "Image"
    if is_text:
        made = make_example(place, source[number], columns, None)
        return Example(made.name, made.content, label, made.mask, made.rationale)
    mark = f"{known_by}:{number}" if known_by else f"{id(source)}:{number}"
    mask = LazyContent(lambda: source[number][columns.mask], f"{mark}:mask") if columns.mask else None
    return Example(place, LazyContent(lambda: source[number][columns.input], mark), label, mask)
