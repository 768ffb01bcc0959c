"""The data of Chefer's Tables 1 to 3 in one folder: the ImageNet validation set and ImageNet-Segmentation.

FOLDER/gtsegs_ijcv.mat             images with outlines
FOLDER/val, ILSVRC2012_val, ...    the validation images, in any folder beside it
"""

from pathlib import Path

from whyformer.data.example import DataError

SEGMENTATION_FILE = "gtsegs_ijcv.mat"


def split_imagenet_folder(folder: Path) -> tuple[Path, Path] | None:
    """The validation set and the file with outlines; None if this is no such folder."""
    file = folder / SEGMENTATION_FILE
    if not file.is_file():
        return None
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(found) != 1:
        named = ", ".join(path.name for path in found) or "none"
        raise DataError(
            f"{folder} has {SEGMENTATION_FILE}, so Tables 1 to 3 are measured, which needs one folder of validation "
            f"images beside it, such as {folder / 'val'}. Folders there: {named}."
        )
    return found[0], file
