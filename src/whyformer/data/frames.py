"""Tables in memory: DataFrames of pandas, and whatever gives its columns to pyarrow (polars, pyarrow, duckdb).

A row is called by its id column, else by the index of its DataFrame, as pandas would: "row 7" stays "row 7" after rows
above it are dropped. A named index counts as a column.

Of a data set of Hugging Face, labels and texts are read at once, images when they are needed.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from whyformer._model import is_of_library, list_column
from whyformer.data.example import Cells, Data, DataError, Example, LazyContent, Problem, Wanted, collect_examples
from whyformer.data.listed import ListReader, refuse_columns
from whyformer.data.records import (
    Record,
    RowError,
    choose_columns,
    make_example,
    note_unused_columns,
    parse_label,
    read_records,
)

if TYPE_CHECKING:
    import pyarrow

PANDAS_FRAME = {"pandas": {"DataFrame"}}
REPEATED_INDEX = "The index has repeated or missing values, so rows are numbered from 0."


def is_frame(source: Any) -> bool:
    """Whether this is a table in memory; a column, which pyarrow reads as well, has no names of columns."""
    has_names = hasattr(source, "column_names") or hasattr(source, "columns") or hasattr(source, "schema")
    return is_of_library(source, PANDAS_FRAME) or (hasattr(source, "__arrow_c_stream__") and has_names)


def read_frame(source: Any, wanted: Wanted) -> Data:
    """An example from every usable row of a table."""
    name = f"the {type(source).__name__}"
    if not is_of_library(source, PANDAS_FRAME):
        table = as_arrow_table(source, name)
        refuse_repeated_columns(table.column_names, name)
        return read_records(name, partial(iterate_arrow_rows, table), wanted)
    levels = [level for level in source.index.names if level is not None and level not in source.columns]
    table = source.reset_index(level=levels) if levels else source
    refuse_repeated_columns(list(table.columns), name)
    places, notes = name_pandas_rows(source.index)
    data = read_records(name, partial(iterate_pandas_rows, table, places), wanted, used=levels)
    return replace(data, notes=(*data.notes, *notes))


def as_arrow_table(source: Any, name: str) -> "pyarrow.Table":
    import pyarrow

    try:
        return source if isinstance(source, pyarrow.Table) else pyarrow.table(source)
    except Exception as error:  # of the library that holds the table
        raise DataError(f"Cannot read {name}: {str(error)[:200]}. Pass a pandas DataFrame.") from None


def read_series(source: Any, wanted: Wanted) -> Data:
    """An example from every value of a column, which is called as the row of a table would be."""
    refuse_columns(wanted, f"A {type(source).__name__}")
    values = list_column(source)
    has_index = hasattr(getattr(source, "index", None), "is_unique")
    places, notes = name_pandas_rows(source.index) if has_index else (number_rows(len(values)), ())
    title = f"the column {source.name}" if isinstance(getattr(source, "name", None), str) else "the column"
    rows = [(place, {"the input": value}) for place, value in zip(places, values, strict=True)]
    return replace(read_records(title, lambda: rows, {"input": "the input"}), notes=notes)


def name_pandas_rows(index: Any) -> tuple[list[str], tuple[str, ...]]:
    """What each row is called, and a note if the index cannot tell: it repeats itself, or has gaps."""
    labels = index.tolist()
    if not index.is_unique or (index.nlevels == 1 and index.hasnans):
        return number_rows(len(labels)), (REPEATED_INDEX,)
    if index.nlevels > 1:
        return ["/".join(map(str, parts)) for parts in labels], ()
    is_number = all(isinstance(label, int) for label in labels) and index.name is None
    return [f"row {label}" if is_number else str(label) for label in labels], ()


def number_rows(count: int) -> list[str]:
    return [f"row {number}" for number in range(count)]


def refuse_repeated_columns(names: Sequence[Hashable], source: str) -> None:
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise DataError(f"{source[0].upper()}{source[1:]} has two columns named {repeated!r}. Rename one.")


def iterate_pandas_rows(table: Any, places: Sequence[str]) -> Iterator[Record]:
    names = list(table.columns)
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return zip(places, (dict(zip(names, row, strict=True)) for row in rows), strict=True)


def iterate_arrow_rows(table: "pyarrow.Table") -> Iterator[Record]:
    rows = (row for batch in table.to_batches(256) for row in batch.to_pylist())
    return ((f"row {number}", row) for number, row in enumerate(rows))


# --- data sets of Hugging Face ----------------------------------------------------------------------------------------


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

    def make_row_example(number: int) -> Example | Problem:
        place, mark = f"row {number}", f"{fingerprint or id(source)}:{number}"
        try:
            label = parse_label(labels[number])
            label = names[label] if names is not None and isinstance(label, int) else label
            if not is_image:
                return replace(make_example(place, source[number], columns, None), label=label)
        except (RowError, IndexError) as error:
            return Problem(place, str(error))
        mask = LazyContent(partial(read_field, source, number, columns.mask), f"{mark}:mask") if columns.mask else None
        return Example(place, LazyContent(partial(read_field, source, number, columns.input), mark), label, mask)

    unused = (column for column in source.column_names if column not in columns.names())
    data = collect_examples(name, map(make_row_example, range(len(source))))
    return replace(data, notes=note_unused_columns(unused))


def read_stream(source: Any, wanted: Wanted, name: str) -> Data:
    """The rows of an IterableDataset, all of them, with their classes by name."""
    names = {column: getattr(feature, "names", None) or () for column, feature in (source.features or {}).items()}
    reader = ListReader(wanted)

    def name_classes(row: Cells) -> Cells:
        def is_class(column: str) -> bool:
            return isinstance(row[column], int) and -1 < row[column] < len(names.get(column, ()))

        return {column: names[column][value] if is_class(column) else value for column, value in row.items()}

    rows = (reader.read_item(f"row {number}", name_classes(row)) for number, row in enumerate(source))
    return replace(collect_examples(name, rows), notes=reader.note_unused())


def read_field(source: Any, number: int, column: str) -> Any:
    """One field of one row. A function of its own, so that a lazy example can be sent to another process."""
    return source[number][column]
