"""Arguments that judge() and audit() share, checked before anything is read, opened or written."""

import os
from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

from whyformer._plain.setting_checks import quote_value
from whyformer.data import Data, read
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.errors import InputError, OutputError

# Suffixes of files that results are saved as. A folder of such a name would be taken for a file.
OUTPUT_SUFFIXES = {
    ".html", ".htm", ".json", ".jsonl", ".csv", ".tsv", ".md", ".txt", ".tex", ".parquet", ".safetensors",
    ".pdf", ".png", ".svg", ".gif", ".jpg", ".jpeg", ".webp", ".zip", ".gz",
}  # fmt: skip
ColumnNames: TypeAlias = Mapping[str, Hashable]  # by role
MAX_SEED = 2**63 - 1


def check_run_number(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    """Refuse all but whole numbers in this range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {quote_value(value)}.", code="E_OPTION")
    if int(value) < least:
        raise InputError(f"{name} must be >= {least}, got {value}.", code="E_OPTION")
    if most is not None and int(value) > most:
        raise InputError(f"{name} must be <= {most}, got {quote_value(value)}.", code="E_OPTION")


def check_run_counts(**counts: int | None) -> None:
    """Refuse all but whole numbers from 1 on; None was not given."""
    for name, count in counts.items():
        if count is not None:
            check_run_number(name, count, least=1)


def check_run_flag(name: str, value: Any) -> None:
    """Refuse all but True and False: the word "no" would count as true."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {quote_value(value)}.", code="E_OPTION")


def check_run_data(data: DataLike | None) -> None:
    """Refuse a single number, and an empty name, which would mean the current folder."""
    if getattr(data, "ndim", None) == 0:
        raise InputError(f"data is one number, {quote_value(data)}. Pass a list of inputs.", code="E_DATA")
    if data is None or (isinstance(data, str) and not data.strip()):
        raise InputError(
            f"data is {quote_value(data)}. Pass a folder, a file, a data set or a list; '.' is the current folder.",
            code="E_DATA",
        )


def read_run_data(
    data: DataLike,
    split: str | None = None,
    columns: ColumnNames | None = None,
    classes: ClassNames | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """The examples that judge(), bulk() or audit() was given."""
    check_run_data(data)
    return read(data, split=split, columns=columns, classes=classes, limit=limit, seed=seed)


def check_run_folder(out: Any) -> Path | None:
    """The folder to write to; refuses what is a file, or is called like one."""
    if out is None:
        return None
    path = os.fspath(out) if isinstance(out, str | os.PathLike) else None
    if not isinstance(path, str):
        raise InputError(f"out must be the path of a folder, got {quote_value(out)}.", code="E_OPTION")
    if not path.strip() or "\0" in path:
        raise OutputError(f"out={path!r} is not the path of a folder.")
    folder = Path(path)
    try:
        is_folder, is_there = folder.is_dir(), folder.exists()
    except OSError as error:  # the name is too long
        raise OutputError(f"Cannot write to the folder {folder}: {(error.strerror or str(error)).lower()}.") from None
    if is_there and not is_folder:
        raise OutputError(f"{folder} is a file. Give a folder: several files are written to it.")
    if not is_there and folder.suffix.lower() in OUTPUT_SUFFIXES:
        raise OutputError(
            f"{folder} looks like a file. Give a folder, for example {folder.with_suffix('')}: several files are "
            "written to it."
        )
    return folder


def as_argument_list(given: Any) -> list[Any]:
    """The items of a sequence; anything else, a string too, is the only item."""
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
