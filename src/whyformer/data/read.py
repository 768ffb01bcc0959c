"""read(): Data from a folder, a file, a data set object or a list."""

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from whyformer._model.text import TextPair, is_text_pair
from whyformer._plain.url import find_url
from whyformer.data import (
    corpora,
    folders,
    hugging_face,
    label_file,
    lines,
    patterns,
    records,
    segmentation_file,
    tables,
    tars,
    worlds,
)
from whyformer.data.example import Data, Example, LazyContent, Problem, collect_examples
from whyformer.data.masks import MASK_VALUES
from whyformer.errors import InputError

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
    columns: Mapping[str, str] | None = None,
    classes: Mapping[str, str | int] | None = None,
    masks: str | os.PathLike[str] | None = None,
    mask_values: str | Mapping[int, int] = "binary",
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """The examples in a folder, a file, a Hugging Face data set or a list.

    source: also a glob pattern of images, tables or tars; a webdataset .tar; or "-" for paths or texts on standard
    input, one per line; or a generated world by the name of its model, such as "demo/queried".
    columns: names of columns by role, {"input": ..., "label": ..., "mask": ..., "rationale": ..., "name": ...}; with
    "pair", the second text of a pair. By default the usual names: text, sentence, image, ...; premise and hypothesis,
    question and context, sentence1 and sentence2, text_a and text_b for pairs.
    classes: new names for labels, {"POS": "positive"}. masks: a folder of masks, named like the images.
    mask_values: what the values in a mask mean: "binary", "voc", "trimap", or a mapping to 1, 0 and -1.
    limit: use this many examples, sampled at random with `seed`.
    """
    _check_read_options(split, columns, classes, mask_values, seed)
    if worlds.is_world(source) and not Path(source).exists():
        worlds.check_world_size(limit)
        return worlds.read_world(source, limit)
    if masks is not None:
        _check_path(masks, "the mask folder")
    data = _read_source(source, split, dict(columns or {}), Path(masks) if masks is not None else None)
    data = data.rename_classes(classes) if classes else data
    data = replace(data, mask_values=mask_values) if not isinstance(source, Data) else data
    if not len(data):
        reasons = "; ".join(str(problem) for problem in data.problems[:3])
        unusable = f" {len(data.problems)} rows could not be used: {reasons}." if data.problems else ""
        raise InputError(f"There is no example in {data.name}.{unusable}", code="E_DATA")
    return data.sample(limit, seed)


def _check_read_options(split: Any, columns: Any, classes: Any, mask_values: Any, seed: Any) -> None:
    for name, value in (("columns", columns), ("classes", classes)):
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} must be a mapping, got {type(value).__name__}.", code="E_OPTION")
    if split is not None and (not isinstance(split, str) or not split.strip()):
        raise InputError(f"split must be a name, got {split!r}.", code="E_OPTION")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, got {seed!r}.", code="E_OPTION")
    if not isinstance(mask_values, Mapping) and mask_values not in MASK_VALUES:
        raise InputError(
            f"There is no mask_values={mask_values!r}. Available: {', '.join(MASK_VALUES)}, or a mapping.",
            code="E_OPTION",
        )


def _read_source(source: Any, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if isinstance(source, Data):
        return source
    if isinstance(source, str) and source == lines.STANDARD_INPUT:
        return lines.read_standard_input()
    if isinstance(source, str | os.PathLike):
        return _read_path(_check_path(source, "the data"), split, columns, masks)
    if isinstance(source, Mapping) and not isinstance(next(iter(source.values()), None), Tensor):
        return _read_split(source, split, columns)
    if hugging_face.is_hugging_face(source):
        return hugging_face.read_hugging_face(source, columns)
    if isinstance(source, Sequence) or hasattr(source, "__iter__"):
        return collect_examples("the list", (_make_listed_example(i, item, columns) for i, item in enumerate(source)))
    raise InputError(
        f"Cannot read examples from {type(source).__name__}. Pass a folder, a file, a data set or a list.",
        code="E_DATA",
    )


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


def _read_split(source: Mapping[Any, Any], split: str | None, columns: dict[str, str]) -> Data:
    """A DatasetDict: one data set per split."""
    splits = [str(name) for name in source]
    wanted = split or next((name for name in ("test", "validation", "val") if name in splits), None)
    if wanted not in splits:
        asked = f"There is no split {split!r}" if split else "Pass split="
        raise InputError(f"{asked}. Available: {', '.join(splits) or 'none'}.", code="E_DATA")
    return _read_source(source[wanted], None, columns, None)


def _read_path(path: Path, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
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


def _read_folder_or_file(path: Path, split: str | None, columns: dict[str, str], masks: Path | None) -> Data:
    if patterns.is_pattern(path):
        return patterns.read_pattern(path, lambda file: _read_file(file, columns))
    if path.is_dir():
        if corpora.is_eraser(path):
            return corpora.read_eraser(path, split)
        if split is not None and (path / split).is_dir():
            path = path / split
        if folders.has_images(path):
            return label_file.label_images(folders.read_folder(path, masks), path)
        raise InputError(f"{str(path)!r} has no images, and it is not in the layout of ERASER.", code="E_DATA")
    if not path.is_file():
        reason = "it is not a regular file" if path.exists() else "there is no such file or folder"
        raise InputError(f"Cannot read {str(path)!r}: {reason}.", code="E_DATA")
    return _read_file(path, columns)


def _read_file(path: Path, columns: dict[str, str]) -> Data:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in (".csv", ".tsv"):
        rows = partial(tables.read_delimited_rows, path, "\t" if suffix == ".tsv" else ",")
        return records.read_records(path.name, rows, columns, path.parent)
    if suffix == ".jsonl":
        return records.read_records(path.name, partial(tables.read_json_lines, path), columns, path.parent)
    if suffix == ".parquet":
        return records.read_records(path.name, partial(tables.read_parquet_rows, path), columns, path.parent)
    if suffix == ".mat":
        return segmentation_file.read_segmentation_file(path)
    if suffix == ".tar":
        return tars.read_tar(path)
    if suffix == ".json" and corpora.is_hatexplain(path):
        return corpora.read_hatexplain(path)
    if suffix == ".txt" and corpora.is_trees(path):
        return corpora.read_trees(path)
    if records.is_image_name(path.name):
        raise InputError(f"{path.name!r} is one image. Pass the folder it is in, or a list of images.", code="E_DATA")
    reason = UNREADABLE.get(suffix, f"Supported: {', '.join((*TABLE_SUFFIXES, *OTHER_SUFFIXES))}, each also as .gz")
    raise InputError(f"Cannot tell the format of {path.name!r}. {reason}.", code="E_DATA")


def _make_listed_example(number: int, item: Any, columns: dict[str, str]) -> Example | Problem:
    """One item of a list: an example, an input, an input with its label, or a row with named fields."""
    name = f"example {number}"
    try:
        if isinstance(item, Example):
            return item
        if isinstance(item, TextPair):
            return Example(name, item)
        if isinstance(item, tuple) and len(item) == 2:
            content = TextPair(*item[0]) if is_text_pair(item[0]) else item[0]
            return Example(name, content, records.parse_label(item[1]))
        if isinstance(item, Mapping) and not all(isinstance(value, Tensor) for value in item.values()):
            return records.make_example(name, item, records.choose_columns(list(item), columns, name), None)
        if isinstance(item, str | os.PathLike | Image.Image | Tensor | Mapping | LazyContent):
            return Example(name, item)
    except (records.RowError, InputError) as error:
        return Problem(name, str(error))
    return Problem(name, f"{type(item).__name__} is not a supported input")
