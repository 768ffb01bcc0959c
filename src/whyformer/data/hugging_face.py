"""Hugging Face data sets: labels and texts are read at once, images when they are needed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from whyformer._model import is_of_library
from whyformer.data.example import Data, Example, LazyContent, Problem, Row, Wanted, collect_examples
from whyformer.data.listed import ListReader, refuse_columns
from whyformer.data.records import Columns, RowError, choose_columns, make_example, note_unused_columns, parse_label

TABLE_FORMATS = ("pandas", "polars", "arrow")  # in which a row is a table
TENSOR_FORMATS = ("torch", "numpy", "tensorflow", "jax")  # in which an image is an array of bytes


def is_hugging_face(source: Any) -> bool:
    """Whether this is a `datasets` object, by its attributes: the library need not be installed."""
    return hasattr(source, "features") and hasattr(source, "column_names") and hasattr(source, "__getitem__")


def is_data_set_column(source: Any) -> bool:
    """Whether this is a column of a data set, and not a field of such a column."""
    return is_of_library(source, {"datasets": {"Column", "IterableColumn"}}) and is_hugging_face(source.source)


def read_data_set_column(source: Any, wanted: Wanted) -> Data:
    """The inputs of a column, in the same way as those of the data set."""
    refuse_columns(wanted, "A column")
    return read_hugging_face(source.source.select_columns([source.column_name]), {"input": source.column_name})


def read_hugging_face(source: Any, wanted: Wanted) -> Data:
    """Labels and texts are read now, images when they are needed: together they may not fit into memory."""
    name = str(getattr(getattr(source, "info", None), "dataset_name", None) or "the data set")
    if not hasattr(source, "__len__"):
        return read_stream(source, wanted, name)
    columns = choose_columns(list(source.column_names), wanted, name)
    fingerprint = getattr(source, "_fingerprint", None)
    is_image = type((source.features or {}).get(columns.input)).__name__ == "Image"
    if getattr(source, "format", {"type": None})["type"] in (TABLE_FORMATS + TENSOR_FORMATS * is_image):
        source = source.with_format(None)
    names = getattr((source.features or {}).get(columns.label), "names", None) if columns.label else None
    labels = list(source[columns.label]) if columns.label else [None] * len(source)

    def items() -> Iterator[Example | Problem]:
        for number in range(len(source)):
            try:
                label = parse_label(labels[number])
                if names is not None and isinstance(label, int):
                    label = names[label]
                yield make_lazy_example(source, number, columns, label, fingerprint)
            except (RowError, IndexError) as error:
                yield Problem(f"row {number}", str(error))

    unused = (column for column in source.column_names if column not in columns.names())
    return replace(collect_examples(name, items()), notes=note_unused_columns(unused))


def read_stream(source: Any, wanted: Wanted, name: str) -> Data:
    """The rows of an IterableDataset, all of them, with their classes by name."""
    names = {column: getattr(feature, "names", None) or () for column, feature in (source.features or {}).items()}
    reader = ListReader(wanted)

    def name_classes(row: Row) -> Row:
        numbers = {
            column for column, own in names.items() if isinstance(row.get(column), int) and -1 < row[column] < len(own)
        }
        return {column: names[column][value] if column in numbers else value for column, value in row.items()}

    rows = (reader.read_item(f"row {number}", name_classes(row)) for number, row in enumerate(source))
    data = collect_examples(name, rows)
    return replace(data, notes=reader.note_unused())


def make_lazy_example(
    source: Any, number: int, columns: Columns, label: int | str | None, fingerprint: str | None
) -> Example:
    """A text is read now, an image when it is needed."""
    place = f"row {number}"
    is_text = type((source.features or {}).get(columns.input)).__name__ != "Image"
    if is_text:
        return replace(make_example(place, source[number], columns, None), label=label)
    mark = f"{fingerprint or id(source)}:{number}"
    mask = LazyContent(partial(read_field, source, number, columns.mask), f"{mark}:mask") if columns.mask else None
    return Example(place, LazyContent(partial(read_field, source, number, columns.input), mark), label, mask)


def read_field(source: Any, number: int, column: str) -> Any:
    """One field of one row. A function of its own, so that a lazy example can be sent to another process."""
    return source[number][column]
