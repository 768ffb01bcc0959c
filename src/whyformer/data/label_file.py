"""Label files: the classes of images that are all in one folder, as the validation set of ImageNet is distributed.

    val.txt                 ILSVRC2012_val_00000001.JPEG 65        a class number, in the order of models
    LOC_val_solution.csv    ImageId,PredictionString               a synset such as n01751748, then boxes

either in the folder of the images or in the one above it. The file `ILSVRC2012_validation_ground_truth.txt` of the
development kit is refused: its numbers are ids of ILSVRC, whose order is not that of the classes of models. Only images
with names of that set are labelled so; other folders may have a val.txt that means something else.
"""

import csv
from dataclasses import replace
from pathlib import Path

from whyformer.data.example import Data, DataError, Problem

VALIDATION_PREFIX = "ILSVRC2012_val_"
PLAIN, KAGGLE, DEVELOPMENT_KIT = "val.txt", "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"


def find_label_file(folder: Path) -> Path | None:
    """The label file for a folder of images, if there is one."""
    places = [place / name for place in (folder, folder.parent) for name in (PLAIN, KAGGLE)]
    found = next((path for path in places if path.is_file()), None)
    if found is None and (folder / DEVELOPMENT_KIT).is_file():
        raise DataError(
            f"{DEVELOPMENT_KIT} has ids of ILSVRC, which are in another order than the classes of models. Put {PLAIN} "
            f"('name number' in each line) or {KAGGLE} in its place."
        )
    return found


def label_images(data: Data, folder: Path) -> Data:
    """The images of ImageNet's validation set in one folder, with the classes of its label file; else as they are."""
    flat = all(e.label is None and Path(e.name).name.startswith(VALIDATION_PREFIX) for e in data.examples)
    file = find_label_file(folder) if flat and data.examples else None
    if file is None:
        return data
    labels = read_kaggle_labels(file) if file.suffix == ".csv" else read_plain_labels(file)
    examples = tuple(replace(example, label=labels.get(Path(example.name).stem)) for example in data.examples)
    reason = f"it is not in {file.name}, so it has no class"
    missing = (Problem(example.name, reason, is_lost=False) for example in examples if example.label is None)
    return replace(data, examples=examples, problems=(*data.problems, *missing))


def read_plain_labels(file: Path) -> dict[str, int | str]:
    labels: dict[str, int | str] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        name, _, label = line.strip().rpartition(" ")
        if not name and not label:
            continue
        if not name or not label.isdecimal():
            raise DataError(f"{file.name}:{number}: not 'name number', got {line[:60]!r}.")
        labels[Path(name.strip()).stem] = int(label)
    return labels


def read_kaggle_labels(file: Path) -> dict[str, int | str]:
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"ImageId", "PredictionString"} <= rows[0].keys():
        raise DataError(f"{file.name} has no columns ImageId and PredictionString.")
    return {str(row["ImageId"]): str(row["PredictionString"]).split(" ")[0] for row in rows}
