"""Examples from a list: inputs, (input, label) pairs, or rows with named fields; what is no such list is refused."""

import io
from collections.abc import Callable, Hashable, ItemsView, Iterable, KeysView, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from whyformer._model import TextPair, is_column, is_text_pair
from whyformer.data import records
from whyformer.data.example import Cells, Data, DataError, Example, Problem, Wanted, WrongOption, collect_examples
from whyformer.errors import InputError

READABLE = "Pass a folder, a file, a table such as a DataFrame, a data set, or a list of inputs or of (input, label)."


def read_list(source: Iterable[Any], wanted: Wanted) -> Data:
    """An example for every item."""
    reader = ListReader(wanted)
    data = collect_examples("the list", (reader.read_item(f"example {n}", item) for n, item in enumerate(source)))
    if data.examples and not reader.fields:
        refuse_columns(wanted, "The list")
    return replace(data, notes=reader.note_unused())


class ListReader:
    """Reads items one by one, and remembers which named fields have no role."""

    def __init__(self, wanted: Wanted, name_class: Callable[[Any], int | str | None] = records.parse_label) -> None:
        self.wanted, self.name_class = wanted, name_class
        self.fields: dict[Hashable, bool] = {}  # name -> whether it was used in any row

    def read_item(self, name: str, item: Any) -> Example | Problem:
        """One item: an example, an input, an input with its label, or a row with named fields."""
        try:
            return item if isinstance(item, Example) else self._make_example(name, item)
        except (records.RowError, InputError) as error:
            return Problem(name, str(error))

    def _make_example(self, name: str, item: Any) -> Example:
        if isinstance(item, TextPair):
            return Example(name, item)
        if hasattr(item, "_asdict"):  # a named tuple, such as a row of DataFrame.itertuples()
            item = item._asdict()
        elif is_column(item) and hasattr(item, "to_dict"):  # a row of DataFrame.iterrows()
            item = item.to_dict()
        if isinstance(item, tuple) and len(item) == 2:
            content = TextPair(*item[0]) if is_text_pair(item[0]) else records.check_content(item[0])
            return Example(name, content, self.name_class(item[1]))
        if isinstance(item, tuple | list) and len(item) == 1 and isinstance(item[0], Tensor | np.ndarray):
            return Example(name, item[0])  # of a TensorDataset without labels
        if isinstance(item, Mapping) and (self.wanted or is_row(item)):
            return self._make_from_row(name, item)
        if isinstance(item, Mapping):
            # The inputs of a model by name; a label among them is not an input.
            label = next((n for n in records.LABEL_COLUMNS if n in item and item[n].numel() == 1), None)
            content = {n: tensor for n, tensor in item.items() if n != label}
            return Example(name, content, None if label is None else self.name_class(item[label]))
        return Example(name, records.check_content(item))

    def _make_from_row(self, name: str, row: Cells) -> Example:
        columns = records.choose_columns(list(row), self.wanted, name)
        for field in row:
            self.fields[field] = self.fields.get(field, False) or field in columns.names()
        if columns.label is not None:
            row = {**row, columns.label: self.name_class(records.read_cell_value(row[columns.label]))}
        return records.make_example(name, row, columns, None)

    def note_unused(self) -> tuple[str, ...]:
        return records.note_unused_columns(name for name, is_used in self.fields.items() if not is_used)


def is_row(item: Cells) -> bool:
    """Whether these are named fields, and not the tensors that a model takes by name."""
    has_roles = all(item.keys() & set(names) for names in (records.IMAGE_COLUMNS, records.LABEL_COLUMNS))
    return has_roles or not all(isinstance(value, Tensor) for value in item.values())


def refuse_columns(wanted: Wanted, what: str) -> None:
    if wanted:
        raise WrongOption(f"{what} has no named columns. Leave columns= out.")


def refuse_odd_source(source: Any) -> None:
    """Refuse what can be iterated over but is not a list of inputs: its items would be names, keys or groups."""
    kind = type(source).__name__
    advice = None
    match source:
        case Mapping():
            advice = advise_on_mapping(source)
        case KeysView():
            advice = "Keys are names, not inputs. If these are inputs, pass list(data)."
        case Set() if not isinstance(source, ItemsView):
            advice = "It has no order. Pass a list."
        case io.IOBase():
            advice = "Pass its path."
    library = type(source).__module__.partition(".")[0]
    if advice is None and kind.endswith("GroupBy"):
        advice = "Pass one of its groups, which are DataFrames, or the DataFrame itself."
    elif advice is None and (library == "pandas" or any(hasattr(source, name) for name in ("keys", "columns"))):
        advice = READABLE
    is_iterable = hasattr(source, "__iter__") and getattr(source, "ndim", 1) > 0
    if advice is not None or not is_iterable or isinstance(source, bytes | bytearray):
        raise DataError(f"Cannot read examples from {kind}. {advice or READABLE}")


def advise_on_mapping(source: Cells) -> str:
    names = ", ".join(repr(name) for name in list(source)[:5])
    if source and all(isinstance(value, Tensor) for value in source.values()):
        return f"Its tensors ({names}) are one batch. Pass a list with one dictionary for each example."
    return (
        f"Its keys are {names}. If they are columns, pass pandas.DataFrame(data) or a list with one dictionary for "
        "each example; if they are splits, pass split=."
    )
