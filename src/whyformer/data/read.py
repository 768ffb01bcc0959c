"""read(): whatever holds examples becomes Data."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from whyformer.data import corpora, folders, records
from whyformer.data.example import Data, Example, LazyContent, Problem, collect_examples
from whyformer.errors import InputError

FILE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt")


def read(
    source: Any,
    *,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    classes: Mapping[str, str | int] | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_values: str | Mapping[int, int] = "binary",
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """The examples in a folder, file, data set object or list.

    columns: which field holds what, {"input": ..., "label": ..., "mask": ..., "rationale": ..., "name": ...}.
    classes: other names for the labels, {"POS": "positive"}. masks: a folder of masks named as the pictures.
    mask_values: what numbers in a mask mean: "binary", "voc", "trimap", or a mapping to 1, 0 and -1.
    limit: take only so many, drawn at random with this seed.
    """
    found = _read_source(source, split, dict(columns or {}), Path(masks) if masks is not None else None)
    found = found.rename_classes(classes) if classes else found
    found = replace(found, mask_values=mask_values) if not isinstance(source, Data) else found
    if not len(found):
        reasons = "; ".join(str(problem) for problem in found.problems[:3])
        wrong = f" {len(found.problems)} rows could not be used: {reasons}." if found.problems else ""
        raise InputError(f"There is no example in {found.name}.{wrong}")
    return found.sample(limit, seed)


def _read_source(source: Any, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if isinstance(source, Data):
        return source
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), split, columns, masks)
    if isinstance(source, Mapping) and not isinstance(next(iter(source.values()), None), Tensor):
        return _read_split(source, split, columns)
    if records.is_hugging_face(source):
        return records.read_hugging_face(source, columns)
    if isinstance(source, Sequence) or hasattr(source, "__iter__"):
        return collect_examples("the list", (_make_listed_example(i, one, columns) for i, one in enumerate(source)))
    raise InputError(
        f"A {type(source).__name__} holds no examples that could be read. Give a folder, a file or a list."
    )


def _read_split(source: Mapping[Any, Any], split: str | None, columns: dict[str, str]) -> Data:
    """A DatasetDict: one data set for each split."""
    there = [str(name) for name in source]
    wanted = split or next((name for name in ("test", "validation", "val") if name in there), None)
    if wanted not in there:
        raise InputError(f"Which split? There are: {', '.join(there) or 'none'}.")
    return _read_source(source[wanted], None, columns, None)


def _read_path(path: Path, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if path.is_dir():
        if corpora.is_eraser(path):
            return corpora.read_eraser(path, split)
        if split is not None and (path / split).is_dir():
            path = path / split
        if folders.has_images(path):
            return folders.read_folder(path, masks)
        raise InputError(f"There are no pictures in {str(path)!r}, and it is not in the layout of ERASER.")
    if not path.is_file():
        there = "it is not a regular file" if path.exists() else "there is no such file or folder"
        raise InputError(f"Cannot read {str(path)!r}: {there}.")
    try:
        return _read_file(path, columns)
    except OSError as error:  # no permission, or a damaged .gz
        raise InputError(f"Cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}.") from None
    except EOFError:
        raise InputError(f"{str(path)!r} ends early.") from None


def _read_file(path: Path, columns: dict[str, str]) -> Data:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        rows = records.read_delimited_rows(path, "\t" if suffix == ".tsv" else ",")
        return records.read_records(path.name, rows, columns, path.parent)
    if suffix == ".jsonl":
        return records.read_records(path.name, records.read_json_lines(path), columns, path.parent)
    if suffix == ".parquet":
        return records.read_records(path.name, records.read_parquet_rows(path), columns, path.parent)
    if suffix == ".json" and corpora.is_hatexplain(path):
        return corpora.read_hatexplain(path)
    if suffix == ".txt" and corpora.is_trees(path):
        return corpora.read_trees(path)
    raise InputError(
        f"Cannot tell what {path.name!r} holds. Names that end in {', '.join(FILE_SUFFIXES)} may work, also .gz."
    )


def _make_listed_example(number: int, one: Any, columns: dict[str, str]) -> Example | Problem:
    """One entry of a list: an example, an input, an input with its label, or a dictionary with the usual names."""
    name = f"example {number}"
    if isinstance(one, Example):
        return one
    if isinstance(one, tuple) and len(one) == 2:
        try:
            return Example(name, one[0], records.parse_label(one[1]))
        except records.RowError as error:
            return Problem(name, str(error))
    if isinstance(one, Mapping) and not all(isinstance(value, Tensor) for value in one.values()):
        try:
            return records.make_example(name, one, records.choose_columns(list(one), columns, name), None)
        except (records.RowError, InputError) as error:
            return Problem(name, str(error))
    if isinstance(one, str | os.PathLike | Image.Image | Tensor | Mapping | LazyContent):
        return Example(name, one)
    return Problem(name, f"a {type(one).__name__} is no input")
