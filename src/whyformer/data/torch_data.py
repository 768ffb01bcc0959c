"""torch Datasets and DataLoaders of inputs, (input, label) pairs or dictionaries.

Of a Dataset with numbered items, texts are kept and images read again when they are needed; its attribute `classes`, as
torchvision has it, names the labels. Batches of a DataLoader are taken apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from whyformer.data.example import (
    Data,
    DataError,
    Example,
    LazyContent,
    Problem,
    Wanted,
    collect_examples,
    fingerprint_content,
)
from whyformer.data.listed import ListReader
from whyformer.data.records import check_content, parse_label
from whyformer.errors import InputError

T = TypeVar("T")
SHUFFLED = (
    "The DataLoader shuffles: the examples come in another order each time, so a run with out= cannot be resumed."
)


def read_torch_data(source: Dataset[Any] | DataLoader[Any], wanted: Wanted) -> Data:
    reader = ListReader(wanted, make_class_namer(source.dataset if isinstance(source, DataLoader) else source))
    name = f"the {type(source).__name__}"
    if isinstance(source, DataLoader | IterableDataset) or not hasattr(source, "__len__"):
        items = name_failures(iterate_loader(source) if isinstance(source, DataLoader) else iter(source), name)
        data = collect_examples(name, (reader.read_item(f"example {n}", item) for n, item in enumerate(items)))
    else:
        data = collect_examples(name, (read_numbered(source, n, reader) for n in range(len(source))))
    is_shuffled = isinstance(source, DataLoader) and isinstance(source.sampler, RandomSampler)
    return replace(data, notes=(*reader.note_unused(), *([SHUFFLED] if is_shuffled else [])))


def name_failures(items: Iterator[T], source: str) -> Iterator[T]:
    """The items; an error of the code that makes them is reported as that of the data."""
    try:
        yield from items
    except Exception as error:
        if isinstance(error, InputError | MemoryError):
            raise
        raise DataError(f"Reading from {source} failed: {quote_error(error)}.") from error


def quote_error(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}".rstrip(": .")


def make_class_namer(dataset: Any) -> Callable[[Any], int | str | None]:
    """Reads a label, and gives it its name where the dataset, or the one it is a part of, lists its classes."""
    while not hasattr(dataset, "classes") and isinstance(getattr(dataset, "dataset", None), Dataset):
        dataset = dataset.dataset
    classes = getattr(dataset, "classes", None)
    names = classes if isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes) else ()

    def name_class(value: Any) -> int | str | None:
        label = parse_label(value)
        return names[label] if isinstance(label, int) and label < len(names) else label

    return name_class


@dataclass(frozen=True)
class NumberedItem:
    """Reads the input of an item again. Another process gets the input itself: it may not know the dataset's class."""

    dataset: Dataset[Any]
    number: int
    wanted: Wanted

    def __call__(self) -> Any:
        example = ListReader(self.wanted).read_item("", self.dataset[self.number])
        if isinstance(example, Problem):
            raise DataError(f"Item {self.number} of the dataset cannot be read again: {example.reason}.")
        return example.content

    def __reduce__(self) -> Any:
        return partial, (check_content, self())


def read_numbered(dataset: Dataset[Any], number: int, reader: ListReader) -> Example | Problem:
    """The example of an item; images and tensors are not kept, since together they may not fit into memory."""
    try:
        example = reader.read_item(f"example {number}", dataset[number])
    except MemoryError:
        raise
    except Exception as error:  # of the dataset's own code, such as a damaged file
        return Problem(f"example {number}", quote_error(error))
    if isinstance(example, Problem) or not isinstance(example.content, Image.Image | Tensor | np.ndarray):
        return example
    mark = fingerprint_content(example.content)
    return replace(example, content=LazyContent(NumberedItem(dataset, number, reader.wanted), mark))


def iterate_loader(loader: DataLoader[Any]) -> Iterator[Any]:
    """The items of all batches, in order."""
    if loader.batch_size is None and loader.batch_sampler is None:
        yield from (tuple(item) if isinstance(item, list) else item for item in loader)  # pairs became lists
        return
    is_collated = loader.collate_fn is default_collate
    for batch in loader:
        yield from split_batch(batch, is_collated=is_collated)


def split_batch(batch: Any, *, is_collated: bool) -> Iterator[Any]:
    """The items of a batch: a tensor, a list of items, inputs and labels, or columns by name.

    is_collated: torch put it together, so that a list of two is the inputs and the labels, never two pairs.
    """
    if isinstance(batch, Mapping):
        for cells in zip(*check_lengths(batch.values()), strict=True):
            yield dict(zip(batch, map(copy_row, cells), strict=True))
    elif isinstance(batch, Tensor | np.ndarray):
        yield from map(copy_row, batch)
    elif isinstance(batch, list | tuple) and is_list_of_items(batch, is_collated=is_collated):
        yield from batch
    elif isinstance(batch, list | tuple) and len(batch) == 1:
        yield from split_batch(batch[0], is_collated=is_collated)
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        yield from zip(*check_lengths((list(split_batch(batch[0], is_collated=True)), batch[1])), strict=True)
    else:
        parts = f" of {len(batch)} parts" if isinstance(batch, list | tuple) else ""
        raise DataError(
            f"A batch of the DataLoader is a {type(batch).__name__}{parts}. It must be inputs and labels, or a "
            "dictionary of columns. Write a collate_fn that returns these."
        )


def is_list_of_items(batch: Sequence[Any], *, is_collated: bool) -> bool:
    """Whether the batch is a list of inputs or of (input, label), and not the inputs beside the labels."""
    kinds = (str, Image.Image, Example) if is_collated else (str, Image.Image, Example, Mapping)
    if all(isinstance(item, kinds) for item in batch):
        return True
    if is_collated or not isinstance(batch, list):
        return False
    if all(isinstance(item, tuple) and len(item) == 2 for item in batch):
        return True
    return len(batch) > 2 and all(isinstance(item, Tensor) and item.shape[1:] == batch[0].shape[1:] for item in batch)


def check_lengths(columns: Iterable[T]) -> list[T]:
    """The columns of a batch, which must all have one entry for each item."""
    found = list(columns)
    lengths = [len(one) if isinstance(one, Tensor | np.ndarray | list | tuple) else 1 for one in found]
    if len(set(lengths)) > 1:
        raise DataError(f"The parts of a batch of the DataLoader have different lengths: {lengths}.")
    return found


def copy_row(row: Any) -> Any:
    """A row with memory of its own, so that the batch can be freed."""
    return row.clone() if isinstance(row, Tensor) else row
