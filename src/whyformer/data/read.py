"""read(): whatever holds examples becomes Data."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from whyformer.data import corpora, folders, records
from whyformer.data.example import Data, Example, Later, Problem, collected
from whyformer.errors import InputError

FILES = (".csv", ".tsv", ".jsonl", ".parquet", ".json", ".txt")


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
    found = _read(source, split, dict(columns or {}), Path(masks) if masks is not None else None)
    found = found.relabelled(classes) if classes else found
    found = replace(found, mask_values=mask_values) if not isinstance(source, Data) else found
    if not len(found):
        reasons = "; ".join(str(problem) for problem in found.problems[:3])
        wrong = f" {len(found.problems)} rows could not be used: {reasons}." if found.problems else ""
        raise InputError(f"There is no example in {found.name}.{wrong}")
    return found.sample(limit, seed)


def _read(source: Any, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if isinstance(source, Data):
        return source
    if isinstance(source, str | os.PathLike):
        return _from_path(Path(source), split, columns, masks)
    if isinstance(source, Mapping) and not isinstance(next(iter(source.values()), None), Tensor):
        return _from_splits(source, split, columns)
    if records.is_hugging_face(source):
        return records.read_hugging_face(source, columns)
    if isinstance(source, Sequence) or hasattr(source, "__iter__"):
        return collected("the list", (_listed(i, one, columns) for i, one in enumerate(source)))
    raise InputError(
        f"A {type(source).__name__} holds no examples that could be read. Give a folder, a file or a list."
    )


def _from_splits(source: Mapping[Any, Any], split: str | None, columns: dict[str, str]) -> Data:
    """A DatasetDict: one data set for each split."""
    there = [str(name) for name in source]
    wanted = split or next((name for name in ("test", "validation", "val") if name in there), None)
    if wanted not in there:
        raise InputError(f"Which split? There are: {', '.join(there) or 'none'}.")
    return _read(source[wanted], None, columns, None)


def _from_path(path: Path, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if path.is_dir():
        if corpora.is_eraser(path):
            return corpora.read_eraser(path, split)
        if split is not None and (path / split).is_dir():
            path = path / split
        if folders.has_pictures(path):
            return folders.read_folder(path, masks)
        raise InputError(f"There are no pictures in {str(path)!r}, and it is not in the layout of ERASER.")
    if not path.is_file():
        there = "it is not a regular file" if path.exists() else "there is no such file or folder"
        raise InputError(f"Cannot read {str(path)!r}: {there}.")
    try:
        return _from_file(path, columns)
    except OSError as error:  # no permission, or a damaged .gz
        raise InputError(f"Cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}.") from None
    except EOFError:
        raise InputError(f"{str(path)!r} ends early.") from None


def _from_file(path: Path, columns: dict[str, str]) -> Data:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        rows = records.cells(path, "\t" if suffix == ".tsv" else ",")
        return records.read_records(path.name, rows, columns, path.parent)
    if suffix == ".jsonl":
        return records.read_records(path.name, records.lines_of_json(path), columns, path.parent)
    if suffix == ".parquet":
        return records.read_records(path.name, records.rows_of_parquet(path), columns, path.parent)
    if suffix == ".json" and corpora.is_hatexplain(path):
        return corpora.read_hatexplain(path)
    if suffix == ".txt" and corpora.is_trees(path):
        return corpora.read_trees(path)
    raise InputError(f"Cannot tell what {path.name!r} holds. Names that end in {', '.join(FILES)} may work, also .gz.")


def _listed(number: int, one: Any, columns: dict[str, str]) -> Example | Problem:
    """One entry of a list: an example, an input, an input with its label, or a dictionary with the usual names."""
    name = f"example {number}"
    if isinstance(one, Example):
        return one
    if isinstance(one, tuple) and len(one) == 2:
        try:
            return Example(name, one[0], records.label_in(one[1]))
        except records.RowError as error:
            return Problem(name, str(error))
    if isinstance(one, Mapping) and not all(isinstance(value, Tensor) for value in one.values()):
        try:
            return records.example(name, one, records.columns_of(list(one), columns, name), None)
        except (records.RowError, InputError) as error:
            return Problem(name, str(error))
    if isinstance(one, str | os.PathLike | Image.Image | Tensor | Mapping | Later):
        return Example(name, one)
    return Problem(name, f"a {type(one).__name__} is no input")
