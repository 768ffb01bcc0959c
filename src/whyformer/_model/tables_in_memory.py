"""Tables and columns of pandas, polars, pyarrow and datasets, recognised by name: none of them is imported.

A column, such as `frame["text"]`, is a list of inputs. A table is not: iterating over it gives its column names.
"""

from collections.abc import Iterator, KeysView, Mapping
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset

from whyformer.errors import InputError

TABLES = {
    "pandas": {"DataFrame"},
    "polars": {"DataFrame", "LazyFrame"},
    "pyarrow": {"Table", "RecordBatch"},
    "datasets": {"Dataset", "IterableDataset", "DatasetDict", "IterableDatasetDict"},
}
COLUMNS = {
    "pandas": {"Series", "ExtensionArray"},
    "polars": {"Series"},
    "pyarrow": {"Array", "ChunkedArray"},
    "datasets": {"Column", "IterableColumn"},
}


def is_of_library(value: Any, kinds: Mapping[str, set[str]]) -> bool:
    """Whether the class of a value, or one that it inherits from, is one of these."""
    names = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__)
    return any(name in kinds.get(library, ()) for library, name in names)


is_table = partial(is_of_library, kinds=TABLES)
is_column = partial(is_of_library, kinds=COLUMNS)


def list_column(column: Any) -> list[Any]:
    """The values of a column, as Python's own where there are such."""
    convert = next(
        (getattr(column, name) for name in ("to_pylist", "tolist", "to_list") if hasattr(column, name)), None
    )
    return list(column) if convert is None else convert()


def list_column_names(table: Any) -> list[str]:
    names: Any = getattr(table, "column_names", getattr(table, "columns", ()))
    return [] if names is None or isinstance(names, Mapping) else [str(name) for name in names]


def refuse_row(column: Any) -> None:
    """Refuse a row of a DataFrame, which pandas gives as a Series too: its index has the names of columns."""
    index: Any = getattr(column, "index", None)
    names = [] if index is None or callable(index) else [name for name in index[:64] if isinstance(name, str)]
    if {"label", "text"} <= {name.lower() for name in names}:
        raise InputError(
            f"inputs is a row of a table, with {', '.join(names)}. Pass its input alone, such as row['text']."
        )


def as_input_list(inputs: Any) -> Any:
    """A column as a list; what is not a list of inputs is refused, all else is returned as it is."""
    if is_column(inputs):
        refuse_row(inputs)
        return list_column(inputs)
    kind = type(inputs).__name__
    if is_table(inputs) or isinstance(inputs, Dataset | DataLoader):
        names = list_column_names(inputs)
        has = f" with the columns {', '.join(names)}" if names else ""
        example = f", such as inputs[{names[0]!r}]" if names else " as a list"
        raise InputError(
            f"inputs is a {kind}{has}. Pass the inputs alone{example}; judge, bulk and audit take whole data sets."
        )
    if isinstance(inputs, set | frozenset | Iterator | KeysView):
        raise InputError(f"inputs is a {kind}. Pass a list of inputs, for example list(inputs).")
    return inputs
