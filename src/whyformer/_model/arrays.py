"""Numpy arrays, and columns of tables, as inputs.

An array becomes what it most likely is. For a model with an image processor, [height width], [height width channel] and
a stack of the latter are images; with the channels in front they are pixel values, as tensors are. For every other
model an array is the tensor of the same numbers. An array of strings or objects is a list of texts or images.

Tables and columns of pandas, polars, pyarrow and datasets are recognised by name: none of them is imported.

A column, such as `frame["text"]`, is a list of inputs. A table is not: iterating over it gives its column names.
"""

from collections.abc import Iterator, KeysView, Mapping
from functools import partial
from numbers import Number
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from whyformer.errors import InputError

CHANNELS = (1, 3, 4)  # grey, RGB, RGB with transparency


def read_arrays(inputs: Any, *, are_images: bool) -> Any:
    """The inputs of a model with tensors, images or texts in place of arrays; all else as it is."""
    if isinstance(inputs, np.ndarray):
        if inputs.dtype.kind in "UT" or holds_inputs(inputs):
            return read_arrays(inputs.tolist(), are_images=are_images)
        if not are_images or has_channels_first(inputs):
            return as_tensor(inputs)
        return [image_from_array(image) for image in inputs] if inputs.ndim == 4 else image_from_array(inputs)
    if isinstance(inputs, Mapping):
        return {name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        changed = (np.ndarray, Mapping)
        if not any(isinstance(item, changed) for item in inputs):
            return inputs  # also a TextPair
        items = [read_arrays(item, are_images=are_images) if isinstance(item, changed) else item for item in inputs]
        return items if isinstance(inputs, list) else tuple(items)
    return inputs


def holds_inputs(array: np.ndarray) -> bool:
    """Whether this is a list in disguise: texts or images as objects, such as `frame["text"].to_numpy()`."""
    return array.dtype.kind == "O" and array.ndim == 1 and not any(isinstance(item, Number) for item in array)


def has_channels_first(array: np.ndarray) -> bool:
    """Whether these are floating-point pixel values, [channel height width] or a batch of them."""
    is_image_or_batch = array.dtype.kind == "f" and array.ndim in (3, 4)
    return is_image_or_batch and array.shape[-3] in CHANNELS and array.shape[-1] not in CHANNELS


def as_tensor(array: np.ndarray) -> Tensor:
    """A copy as a tensor; small integers become int64, as token ids must be."""
    kind = array.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.array(array, dtype=np.int64 if kind.kind in "iu" else kind, order="C"))
    except TypeError:
        raise InputError(
            f"An array of the type {array.dtype} cannot become a tensor. Pass integers or floating-point numbers.",
            code="E_TENSOR",
        ) from None


def image_from_array(array: np.ndarray) -> Image.Image:
    """The image of an array [height width] or [height width channel]: integers from 0 to 255, or floats from 0 to 1."""
    shape = list(array.shape)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in CHANNELS):
        seems = array.ndim == 3 and array.shape[0] in CHANNELS
        hint = " Its channels seem to come first: use array.transpose(1, 2, 0)." if seems else ""
        raise InputError(
            f"An image array must have the shape [height, width] or [height, width, channel] with 1, 3 or 4 channels, "
            f"got {shape}.{hint}",
            code="E_IMG_SHAPE",
        )
    if 0 in shape:
        raise InputError(f"The image array is empty: shape {shape}.", code="E_IMG_SHAPE")
    pixels = to_bytes(array)
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)


def to_bytes(array: np.ndarray) -> np.ndarray:
    """Pixels from 0 to 255. Values of another range are refused, since their white is not known."""
    if array.dtype.kind not in "biuf":
        raise InputError(f"An image array must hold numbers, got the type {array.dtype}.", code="E_IMG_VALUES")
    if array.dtype == bool or array.dtype.kind == "f":
        white, kind = 1, "floating-point values must be between 0 and 1. Divide them by 255 if that is white."
    elif array.dtype == np.uint16:
        white, kind = 65535, ""
    else:
        white, kind = 255, "integers must be between 0 and 255."
    low, high = float(array.min()), float(array.max())
    if not abs(low) + abs(high) < np.inf:  # also for NaN
        raise InputError("The image array contains NaN or infinity.", code="E_IMG_VALUES")
    if not 0 <= low <= high <= white:
        raise InputError(f"The image array contains values from {low:g} to {high:g}; {kind}", code="E_IMG_VALUES")
    return np.ascontiguousarray(array if white == 255 else array * (255 / white) + 0.5).astype(np.uint8)


# --- tables and columns -----------------------------------------------------------------------------------------------


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
