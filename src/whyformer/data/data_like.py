"""DataLike: what read(), judge(), audit() and bulk() take as data."""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import TypeAliasType

from whyformer._model import OneInput
from whyformer.data.example import Data, Example


class DataFrameLike(Protocol):
    """A DataFrame of pandas or polars."""

    @property
    def columns(self) -> Iterable[Hashable]: ...


class TableLike(Protocol):
    """A table of pyarrow, or a data set of `datasets`."""

    @property
    def column_names(self) -> Iterable[str] | None: ...


LabelLike: TypeAlias = int | str | np.integer | Tensor | None
CellLike: TypeAlias = (
    str | float | os.PathLike[str] | Image.Image | np.ndarray | Tensor | Mapping[str, str | float] | Sequence[str]
    | Sequence[float] | Sequence[Sequence[int]] | None
)  # fmt: skip
ItemLike: TypeAlias = OneInput | tuple[OneInput, LabelLike] | Mapping[str, CellLike] | Example
SourceLike: TypeAlias = Data | DataFrameLike | TableLike | Dataset[ItemLike] | DataLoader[ItemLike]
# A folder, a file, a pattern or the name of a world; a table or data set, perhaps by split; a list of items.
DataLike = TypeAliasType(
    "DataLike", str | os.PathLike[str] | SourceLike | Mapping[str, SourceLike] | Iterable[ItemLike]
)
