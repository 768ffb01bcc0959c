"""ImageNet's folder names (n01440764, ...) as class numbers: sorted by name, the 1,000 synsets are the classes.

A folder with all of them needs nothing else. With some of them the whole list has to be known. It is read from

    LOC_synset_mapping.txt    'n01440764 tench, ...' in each line; beside the images or up to three folders above
    timm                      its own list, if timm is installed
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from whyformer._model import Model
from whyformer.data import Data
from whyformer.data.example import DataError

MAPPING = "LOC_synset_mapping.txt"
TIMM_LIST = ("data", "_info", "imagenet_synsets.txt")


def number_synset_labels(data: Data, model: Model) -> Data:
    """The data with class numbers in place of synsets; as it is if its labels are something else."""
    labels = sorted({str(example.label) for example in data.examples if example.label is not None})
    if (
        not labels
        or not all(re.fullmatch(r"n\d{8}", label) for label in labels)
        or set(labels) <= set(model.labels or ())
    ):
        return data
    classes = len(model.labels or ())
    synsets = labels if len(labels) == classes else find_synset_list(data, labels, classes)
    numbers = {synset: number for number, synset in enumerate(synsets)}
    return replace(
        data, examples=tuple(replace(example, label=numbers[str(example.label)]) for example in data.examples)
    )


def find_synset_list(data: Data, labels: list[str], classes: int) -> list[str]:
    """All synsets of the model's classes in their order, from the first list that fits."""
    for file in list_synset_files(data):
        synsets = sorted(line.split()[0] for line in file.read_text("utf-8").splitlines() if line.strip())
        if len(synsets) == classes and set(labels) <= set(synsets):
            return synsets
    raise DataError(
        f"{data.name} has {len(labels)} of ImageNet's synsets and the model {classes} classes: which synset is which "
        f"class is not known. Put {MAPPING} (one synset in each of {classes} lines) beside the images, or install timm."
    )


def list_synset_files(data: Data) -> Iterator[Path]:
    """The files that may hold the list, those near the images first."""
    content = next((e.content for e in data.examples if isinstance(e.content, str | Path)), None)
    if content is not None:
        yield from existing(folder / MAPPING for folder in list(Path(content).absolute().parents)[:4])
    package = find_spec("timm")
    if package is not None and package.origin is not None:
        yield from existing([Path(package.origin).parent.joinpath(*TIMM_LIST)])


def existing(paths: Iterable[Path]) -> Iterator[Path]:
    return (path for path in paths if path.is_file())
