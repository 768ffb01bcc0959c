"""read(): Data from a folder, a file, a data set object or a list."""

import os
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from whyformer._model import is_column
from whyformer._plain.paths import find_url
from whyformer.data import (
    corpora,
    folders,
    frames,
    label_file,
    listed,
    records,
    segmentation_file,
    tables,
    tars,
    torch_data,
    worlds,
)
from whyformer.data.data_like import DataLike
from whyformer.data.example import Cells, ClassNames, Data, DataError, Wanted, WrongOption
from whyformer.data.masks import check_mask_values

SPLITS = ("train", "test", "validation", "val", "dev")
HELD: tuple[tuple[Callable[[Any], bool], Callable[[Any, Wanted], Data]], ...] = (
    (frames.is_data_set_column, frames.read_data_set_column),
    (frames.is_hugging_face, frames.read_hugging_face),
    (frames.is_frame, frames.read_frame),
    (lambda source: isinstance(source, Dataset | DataLoader), torch_data.read_torch_data),
    (is_column, frames.read_series),
)
TABLES: dict[str, Callable[[Path], Iterable[records.Record]]] = {
    ".csv": partial(tables.read_delimited_rows, delimiter=","),
    ".tsv": partial(tables.read_delimited_rows, delimiter="\t"),
    ".jsonl": tables.read_json_lines,
    ".parquet": tables.read_parquet_rows,
}
LAYOUTS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Data]]] = {  # files whose layout is fixed
    ".tar": (Path.is_file, tars.read_tar),
    ".mat": (Path.is_file, segmentation_file.read_segmentation_file),
    ".json": (corpora.is_hatexplain, corpora.read_hatexplain),
    ".txt": (corpora.is_trees, corpora.read_trees),
}
UNREADABLE = {  # suffixes of which only one kind of file is read
    ".json": "Of .json files, only HateXplain's dataset.json is read. Write one object per line, as .jsonl",
    ".txt": "Of .txt files, only those of the Stanford Sentiment Treebank are read. Write a .csv with a column text, "
    "or pass - and one text per line on standard input",
}


def read(
    source: DataLike,
    *,
    split: str | None = None,
    columns: Mapping[str, Hashable] | None = None,
    classes: ClassNames | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_values: str | Mapping[int, int] = "binary",
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """The examples in a folder, a file, a table in memory, a data set or a list.

    source: a folder of images; a file or glob pattern of images, tables or tars; a DataFrame of pandas or polars, a
    pyarrow table, a `datasets` object, or a column of any of these; a torch Dataset or DataLoader; a list of inputs, of
    (input, label) or of dictionaries; "-" for paths or texts on standard input, one per line; or a generated world by
    the name of its model, such as "demo/queried".
    split: of a DatasetDict, ERASER, or a folder with one folder per split.
    columns: names of columns by role, {"input": ..., "label": ..., "mask": ..., "rationale": ..., "name": ...}; with
    "pair", the second text of a pair. By default the usual names: text, sentence, image, ...; premise and hypothesis,
    question and context, sentence1 and sentence2, text_a and text_b for pairs.
    classes: what the model calls the labels, {"POS": "positive", 0: "negative"}; or the names of the labels 0, 1, 2,
    ..., ["negative", "positive"]. masks: a folder of masks, named like the images.
    mask_values: what the values in a mask mean: "binary", "voc", "trimap", or a mapping to 1, 0 and -1.
    limit: use this many examples, sampled at random with `seed`.
    """
    _check_read_options(split, columns, classes, mask_values, seed)
    if isinstance(source, str) and source in worlds.WORLDS and not Path(source).exists():
        _refuse_split(split, source)
        listed.refuse_columns(columns or {}, source)
        return worlds.read_world(source, limit)
    mask_folder = None if masks is None else _check_path(masks, "the mask folder")
    data = _read_source(source, split, dict(columns or {}), mask_folder)
    data = data.rename_classes(classes) if classes else data
    data = replace(data, mask_values=mask_values) if not isinstance(source, Data) else data
    if not len(data):
        reasons = "; ".join(str(problem).rstrip(".") for problem in data.problems[:3])
        rows = "1 row" if len(data.problems) == 1 else f"{len(data.problems)} rows"
        unusable = f" {rows} could not be used: {reasons}." if data.problems else ""
        raise DataError(f"There is no example in {data.name}.{unusable}")
    return data.sample(limit, seed)


def _check_read_options(split: Any, columns: Any, classes: Any, mask_values: Any, seed: Any) -> None:
    if columns is not None and not isinstance(columns, Mapping):
        raise WrongOption(f"columns must be a mapping, got {type(columns).__name__}.")
    is_list = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
    if classes is not None and not is_list and not isinstance(classes, Mapping):
        raise WrongOption(
            f"classes must be a mapping from labels to classes, or a list of names, got {type(classes).__name__}."
        )
    if split is not None and (not isinstance(split, str) or not split.strip()):
        raise WrongOption(f"split must be a name, got {split!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise WrongOption(f"seed must be a whole number, got {seed!r}.")
    check_mask_values(mask_values)


def _read_source(source: Any, split: str | None, columns: Wanted, masks: Path | None) -> Data:
    if isinstance(source, Data):
        if columns or split is not None:
            raise WrongOption("This data is read already. Pass columns= and split= to data.read().")
        return source
    if isinstance(source, str) and source == tables.STANDARD_INPUT:
        _refuse_split(split, "Standard input")
        listed.refuse_columns(columns, "Standard input")
        return tables.read_input_lines()
    if isinstance(source, str | os.PathLike):
        return _read_path(_check_path(source, "the data"), split, columns, masks)
    if isinstance(source, Mapping) and _has_splits(source, split):
        # A DatasetDict: one data set per split.
        splits = [str(name) for name in source]
        wanted = split or next((name for name in ("test", "validation", "val") if name in splits), None)
        if wanted not in splits:
            asked = f"There is no split {split!r}" if split else "Pass split="
            raise DataError(f"{asked}. Available: {', '.join(splits) or 'none'}.")
        return _read_source(source[wanted], None, columns, None)
    _refuse_split(split, f"A {type(source).__name__}")
    read_held = next((read_kind for is_kind, read_kind in HELD if is_kind(source)), None)
    if read_held is not None:
        return read_held(source, columns)
    listed.refuse_odd_source(source)
    return listed.read_list(source, columns)


def _has_splits(source: Cells, split: str | None) -> bool:
    """Whether a dictionary holds one data set for each split, and not columns or tensors."""
    if split is not None or not source or any(name in SPLITS for name in source):
        return True
    return all(any(is_kind(value) for is_kind, _ in HELD[1:4]) for value in source.values())


def _refuse_split(split: str | None, what: str) -> None:
    if split is not None:
        raise WrongOption(f"{what} has no splits. Leave split= out.")


def _check_path(source: str | os.PathLike[str], what: str) -> Path:
    """Refuse an empty path, which would be the current folder, and what is not a path."""
    if not isinstance(source, str | os.PathLike):
        raise WrongOption(f"The path of {what} must be a string or a path, got {type(source).__name__}.")
    text = os.fsdecode(source)
    if not text.strip():
        raise DataError(f"The path of {what} is empty, got {text!r}. Write '.' for the current folder.")
    if "\0" in text:
        raise DataError(f"The path of {what} contains a NUL character.")
    if (url := find_url(text)) is not None:
        raise DataError(f"{url!r} is a URL; data is read from this machine only. Download it first.")
    return Path(text)


def _read_path(path: Path, split: str | None, columns: Wanted, masks: Path | None) -> Data:
    try:
        if path.is_dir():
            return _read_folder(path, split, columns, masks)
        _refuse_split(split, path.name)
        if folders.is_pattern(path):
            return folders.read_pattern(path, lambda file: _read_file(file, columns))
        if path.is_file():
            return _read_file(path, columns)
        reason = "it is not a regular file" if path.exists() else "there is no such file or folder"
    except OSError as error:  # permission denied, a name that is too long, or a damaged .gz
        reason = (error.strerror or str(error)).lower()
    except EOFError:
        reason = "the file ends too early"
    except zlib.error as error:
        reason = f"the file is damaged ({error})"
    raise DataError(f"Cannot read {str(path)[:200]!r}: {reason}.")


def _read_folder(path: Path, split: str | None, columns: Wanted, masks: Path | None) -> Data:
    if corpora.is_eraser(path):
        listed.refuse_columns(columns, path.name)
        return corpora.read_eraser(path, split)
    if split is not None and not (path / split).is_dir():
        # The table of a split in a folder, such as test.tsv.
        names = [f"{split}{suffix}{zipped}" for suffix in TABLES for zipped in ("", ".gz")]
        found = next((path / name for name in names if (path / name).is_file()), None)
        if found is None:
            missing = f"it has no folder {split} and no table such as {split}.csv"
            raise DataError(f"There is no split {split!r} in {str(path)!r}: {missing}.")
        return _read_file(found, columns)
    path = path if split is None else path / split
    if any(folders.find_images(path)):
        listed.refuse_columns(columns, f"{path.name}, a folder of images,")
        return label_file.label_images(folders.read_folder(path, masks), path)
    if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        raise DataError(f"datasets saved {str(path)!r}. Pass datasets.load_from_disk({str(path)!r}).")
    raise DataError(f"{str(path)!r} has no images, and it is not in the layout of ERASER.")


def _read_file(path: Path, columns: Wanted) -> Data:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in TABLES:
        return records.read_records(path.name, partial(TABLES[suffix], path), columns, path.parent)
    if suffix in LAYOUTS and LAYOUTS[suffix][0](path):
        listed.refuse_columns(columns, path.name)
        return LAYOUTS[suffix][1](path)
    if records.is_image_name(path.name):
        raise DataError(f"{path.name!r} is one image. Pass the folder it is in, or a list of images.")
    reason = UNREADABLE.get(suffix, f"Supported: {', '.join((*TABLES, '.tar', '.mat'))}, each also as .gz")
    raise DataError(f"Cannot tell the format of {path.name!r}. {reason}.")
