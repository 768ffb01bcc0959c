"""Tables in memory: DataFrames of pandas, and whatever gives its columns to pyarrow (polars, pyarrow, duckdb).

A row is called by its id column, else by the index of its DataFrame, as pandas would: "row 7" stays "row 7" after rows
above it are dropped. A named index counts as a column.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from whyformer._model import is_of_library, list_column
from whyformer.data.example import Data, DataError, Wanted, collect_examples
from whyformer.data.listed import refuse_columns
from whyformer.data.records import Columns, Record, parse_record, read_records

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


def as_arrow_table(source: Any, name: str) -> Any:
    import pyarrow

    try:
        return source if isinstance(source, pyarrow.Table) else pyarrow.table(source)
    except Exception as error:  # of the library that holds the table
        raise DataError(f"Cannot read {name}: {str(error)[:200]}. Pass a pandas DataFrame.") from None


def read_column(source: Any, wanted: Wanted) -> Data:
    """An example from every value of a column, which is called as the row of a table would be."""
    refuse_columns(wanted, f"A {type(source).__name__}")
    values = list_column(source)
    has_index = hasattr(getattr(source, "index", None), "is_unique")
    places, notes = name_pandas_rows(source.index) if has_index else (number_rows(len(values)), ())
    title = f"the column {source.name}" if isinstance(getattr(source, "name", None), str) else "the column"
    rows = zip(places, ({"the input": value} for value in values), strict=True)
    data = collect_examples(title, (parse_record(place, row, Columns("the input"), None) for place, row in rows))
    return replace(data, notes=notes)


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
    cells = zip(*(table[name].tolist() for name in names), strict=True)
    for place, row in zip(places, cells, strict=True):
        yield place, dict(zip(names, row, strict=True))


def iterate_arrow_rows(table: Any) -> Iterator[Record]:
    rows = (row for batch in table.to_batches(256) for row in batch.to_pylist())
    yield from ((f"row {number}", row) for number, row in enumerate(rows))
