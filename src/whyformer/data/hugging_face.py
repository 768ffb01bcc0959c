"""Hugging Face data sets: labels and texts are read at once, images when they are needed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from whyformer.data.example import Data, Example, LazyContent, Problem, collect_examples
from whyformer.data.records import Columns, RowError, choose_columns, make_example, parse_label


def is_hugging_face(source: Any) -> bool:
    """Whether this is a `datasets` object, by its attributes: the library need not be installed."""
    return hasattr(source, "features") and hasattr(source, "column_names") and hasattr(source, "__getitem__")


def read_hugging_face(source: Any, wanted: Mapping[str, str]) -> Data:
    """Labels and texts are read now, images when they are needed: together they may not fit into memory."""
    name = str(getattr(getattr(source, "info", None), "dataset_name", None) or "the data set")
    columns = choose_columns(list(source.column_names), wanted, name)
    fingerprint = getattr(source, "_fingerprint", None)
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

    return collect_examples(name, items())


def make_lazy_example(
    source: Any, number: int, columns: Columns, label: int | str | None, fingerprint: str | None
) -> Example:
    """A text is read now, an image when it is needed."""
    place = f"row {number}"
    is_text = type((source.features or {}).get(columns.input)).__name__ != "Image"
    if is_text:
        return replace(make_example(place, source[number], columns, None), label=label)
    mark = f"{fingerprint or id(source)}:{number}"
    mask = LazyContent(partial(read_cell, source, number, columns.mask), f"{mark}:mask") if columns.mask else None
    return Example(place, LazyContent(partial(read_cell, source, number, columns.input), mark), label, mask)


def read_cell(source: Any, number: int, column: str) -> Any:
    """One field of one row. A function of its own, so that a lazy example can be sent to another process."""
    return source[number][column]
