"""read(): Data from a folder, a file, a data set object or a list."""

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from whyformer._model import is_column
from whyformer._plain.url import find_url
from whyformer.data import (
    corpora,
    folders,
    frames,
    hugging_face,
    label_file,
    lines,
    listed,
    patterns,
    records,
    segmentation_file,
    tables,
    tars,
    torch_data,
    worlds,
)
from whyformer.data.example import ClassNames, Data
from whyformer.data.masks import MASK_VALUES
from whyformer.errors import InputError

SPLITS = ("train", "test", "validation", "val", "dev")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
OTHER_SUFFIXES = (".tar", ".mat")
UNREADABLE = {  # suffixes of which only one kind of file is read
    ".json": "Of .json files, only HateXplain's dataset.json is read. Write one object per line, as .jsonl",
    ".txt": "Of .txt files, only those of the Stanford Sentiment Treebank are read. Write a .csv with a column text, "
    "or pass - and one text per line on standard input",
}


def read(
    source: Any,
    *,
    split: str | None = None,
    columns: Mapping[str, Any] | None = None,
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
    if worlds.is_world(source) and not Path(source).exists():
        worlds.check_world_size(limit)
        _refuse_split(split, source)
        listed.refuse_columns(columns or {}, source)
        return worlds.read_world(source, limit)
    if masks is not None:
        _check_path(masks, "the mask folder")
    data = _read_source(source, split, dict(columns or {}), Path(masks) if masks is not None else None)
    data = data.rename_classes(classes) if classes else data
    data = replace(data, mask_values=mask_values) if not isinstance(source, Data) else data
    if not len(data):
        reasons = "; ".join(str(problem).rstrip(".") for problem in data.problems[:3])
        rows = "1 row" if len(data.problems) == 1 else f"{len(data.problems)} rows"
        unusable = f" {rows} could not be used: {reasons}." if data.problems else ""
        raise InputError(f"There is no example in {data.name}.{unusable}", code="E_DATA")
    return data.sample(limit, seed)


def _check_read_options(split: Any, columns: Any, classes: Any, mask_values: Any, seed: Any) -> None:
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f"columns must be a mapping, got {type(columns).__name__}.", code="E_OPTION")
    is_list = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
    if classes is not None and not is_list and not isinstance(classes, Mapping):
        raise InputError(
            f"classes must be a mapping from labels to classes, or a list of names, got {type(classes).__name__}.",
            code="E_OPTION",
        )
    if split is not None and (not isinstance(split, str) or not split.strip()):
        raise InputError(f"split must be a name, got {split!r}.", code="E_OPTION")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, got {seed!r}.", code="E_OPTION")
    if not isinstance(mask_values, Mapping) and mask_values not in MASK_VALUES:
        raise InputError(
            f"There is no mask_values={mask_values!r}. Available: {', '.join(MASK_VALUES)}, or a mapping.",
            code="E_OPTION",
        )


def _read_source(source: Any, split: str | None, columns: dict[str, Any], masks: Path | None) -> Data:
    if isinstance(source, Data):
        if columns or split is not None:
            raise InputError("This data is read already. Pass columns= and split= to data.read().", code="E_OPTION")
        return source
    if isinstance(source, str) and source == lines.STANDARD_INPUT:
        _refuse_split(split, "Standard input")
        listed.refuse_columns(columns, "Standard input")
        return lines.read_standard_input()
    if isinstance(source, str | os.PathLike):
        return _read_path(_check_path(source, "the data"), split, columns, masks)
    if isinstance(source, Mapping) and _has_splits(source, split):
        return _read_split(source, split, columns)
    _refuse_split(split, f"A {type(source).__name__}")
    return _read_held(source, columns)


def _read_held(source: Any, columns: dict[str, Any]) -> Data:
    """The examples of an object that the caller holds."""
    if hugging_face.is_data_set_column(source):
        return hugging_face.read_data_set_column(source, columns)
    if hugging_face.is_hugging_face(source):
        return hugging_face.read_hugging_face(source, columns)
    if frames.is_frame(source):
        return frames.read_frame(source, columns)
    if torch_data.is_torch_data(source):
        return torch_data.read_torch_data(source, columns)
    if is_column(source):
        return frames.read_column(source, columns)
    listed.refuse_odd_source(source)
    return listed.read_list(source, columns)


def _has_splits(source: Mapping[Any, Any], split: str | None) -> bool:
    """Whether a dictionary holds one data set for each split, and not columns or tensors."""
    if split is not None or not source or any(name in SPLITS for name in source):
        return True
    kinds = (hugging_face.is_hugging_face, frames.is_frame, torch_data.is_torch_data)
    return all(any(is_kind(value) for is_kind in kinds) for value in source.values())


def _refuse_split(split: str | None, what: str) -> None:
    if split is not None:
        raise InputError(f"{what} has no splits. Leave split= out.", code="E_OPTION")


def _check_path(source: Any, what: str) -> Path:
    """Refuse an empty path, which would be the current folder, and what is not a path."""
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"The path of {what} must be a string or a path, got {type(source).__name__}.", code="E_OPTION"
        )
    text = os.fsdecode(source)
    if not text.strip():
        raise InputError(f"The path of {what} is empty, got {text!r}. Write '.' for the current folder.", code="E_DATA")
    if "\0" in text:
        raise InputError(f"The path of {what} contains a NUL character.", code="E_DATA")
    if (url := find_url(text)) is not None:
        raise InputError(f"{url!r} is a URL; data is read from this machine only. Download it first.", code="E_DATA")
    return Path(text)


def _read_split(source: Mapping[Any, Any], split: str | None, columns: dict[str, Any]) -> Data:
    """A DatasetDict: one data set per split."""
    splits = [str(name) for name in source]
    wanted = split or next((name for name in ("test", "validation", "val") if name in splits), None)
    if wanted not in splits:
        asked = f"There is no split {split!r}" if split else "Pass split="
        raise InputError(f"{asked}. Available: {', '.join(splits) or 'none'}.", code="E_DATA")
    return _read_source(source[wanted], None, columns, None)


def _read_path(path: Path, split: str | None, columns: dict[str, Any], masks: Path | None) -> Data:
    try:
        return _read_folder_or_file(path, split, columns, masks)
    except OSError as error:  # permission denied, a name that is too long, or a damaged .gz
        raise InputError(
            f"Cannot read {str(path)[:200]!r}: {(error.strerror or str(error)).lower()}.", code="E_DATA"
        ) from None
    except EOFError:
        raise InputError(f"Cannot read {str(path)!r}: the file ends too early.", code="E_DATA") from None
    except zlib.error as error:
        raise InputError(f"Cannot read {str(path)!r}: the file is damaged ({error}).", code="E_DATA") from None


def _read_folder_or_file(path: Path, split: str | None, columns: dict[str, Any], masks: Path | None) -> Data:
    if path.is_dir():
        return _read_folder(path, split, columns, masks)
    _refuse_split(split, path.name)
    if patterns.is_pattern(path):
        return patterns.read_pattern(path, lambda file: _read_file(file, columns))
    if not path.is_file():
        reason = "it is not a regular file" if path.exists() else "there is no such file or folder"
        raise InputError(f"Cannot read {str(path)!r}: {reason}.", code="E_DATA")
    return _read_file(path, columns)


def _read_folder(path: Path, split: str | None, columns: dict[str, Any], masks: Path | None) -> Data:
    if corpora.is_eraser(path):
        listed.refuse_columns(columns, path.name)
        return corpora.read_eraser(path, split)
    if split is not None and not (path / split).is_dir():
        return _read_file(_find_split_file(path, split), columns)
    path = path if split is None else path / split
    if folders.has_images(path):
        listed.refuse_columns(columns, f"{path.name}, a folder of images,")
        return label_file.label_images(folders.read_folder(path, masks), path)
    if any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        raise InputError(f"datasets saved {str(path)!r}. Pass datasets.load_from_disk({str(path)!r}).", code="E_DATA")
    raise InputError(f"{str(path)!r} has no images, and it is not in the layout of ERASER.", code="E_DATA")


def _find_split_file(folder: Path, split: str) -> Path:
    """The table of a split in a folder, such as test.tsv."""
    names = [f"{split}{suffix}{zipped}" for suffix in TABLE_SUFFIXES for zipped in ("", ".gz")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise InputError(
            f"There is no split {split!r} in {str(folder)!r}: it has no folder {split} and no table such as "
            f"{split}.csv.",
            code="E_DATA",
        )
    return found


def _read_file(path: Path, columns: dict[str, Any]) -> Data:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        rows = partial(tables.read_delimited_rows, path, "\t" if suffix == ".tsv" else ",")
        return records.read_records(path.name, rows, columns, path.parent)
    if suffix == ".jsonl":
        return records.read_records(path.name, partial(tables.read_json_lines, path), columns, path.parent)
    if suffix == ".parquet":
        return records.read_records(path.name, partial(tables.read_parquet_rows, path), columns, path.parent)
    read_file = _find_reader(path, suffix)
    if read_file is None:
        raise _explain_unreadable(path, suffix)
    listed.refuse_columns(columns, path.name)
    return read_file(path)


def _find_reader(path: Path, suffix: str) -> Callable[[Path], Data] | None:
    """What reads a file whose layout is fixed."""
    if suffix == ".mat":
        return segmentation_file.read_segmentation_file
    if suffix == ".tar":
        return tars.read_tar
    if suffix == ".json" and corpora.is_hatexplain(path):
        return corpora.read_hatexplain
    return corpora.read_trees if suffix == ".txt" and corpora.is_trees(path) else None


def _explain_unreadable(path: Path, suffix: str) -> InputError:
    if records.is_image_name(path.name):
        return InputError(f"{path.name!r} is one image. Pass the folder it is in, or a list of images.", code="E_DATA")
    reason = UNREADABLE.get(suffix, f"Supported: {', '.join((*TABLE_SUFFIXES, *OTHER_SUFFIXES))}, each also as .gz")
    return InputError(f"Cannot tell the format of {path.name!r}. {reason}.", code="E_DATA")
