"""Folders of pictures: one folder for each class, or all in one; masks in a folder beside them.

    photos/cat/1.jpg                photos/images/cat/1.jpg       photos/1.jpg
    photos/dog/2.jpg                photos/masks/cat/1.png        photos/2.jpg

A mask belongs to the picture of the same name; endings may differ.
"""

from collections.abc import Iterator
from pathlib import Path

from whyformer.data.example import Data, Example, Problem, collect_examples
from whyformer.errors import InputError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def has_images(folder: Path) -> bool:
    return next(find_images(folder), None) is not None


def find_images(folder: Path) -> Iterator[Path]:
    """All pictures below a folder, by name; hidden ones are left out."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith(".") for part in inner.parts):
            yield path


def read_folder(folder: Path, masks: Path | None = None) -> Data:
    """Every picture; its class is the folder it stands in, if there are such folders."""
    if (folder / "images").is_dir():
        masks = masks or (folder / "masks" if (folder / "masks").is_dir() else None)
        inner = folder / "images"
    else:
        inner = folder
    by_name = find_mask_paths(masks) if masks is not None else None
    return collect_examples(
        folder.name, (one for path in find_images(inner) for one in make_image_examples(inner, path, by_name))
    )


def make_image_examples(folder: Path, path: Path, masks: dict[str, Path] | None) -> Iterator[Example | Problem]:
    inner = path.relative_to(folder)
    label = inner.parts[0] if len(inner.parts) > 1 else None
    mask = None
    if masks is not None:
        mask = masks.get(str(inner.with_suffix(""))) or masks.get(inner.stem)
        if mask is None:
            yield Problem(str(inner), "there is no mask of this name; the picture is used without one")
    yield Example(str(inner), path, label, mask)


def find_mask_paths(folder: Path) -> dict[str, Path]:
    """By their path without ending, and by the bare name where that is not ambiguous."""
    if not folder.is_dir():
        raise InputError(f"There is no folder of masks {str(folder)!r}.")
    found = {str(path.relative_to(folder).with_suffix("")): path for path in find_images(folder)}
    stems = [path.stem for path in found.values()]
    return {path.stem: path for path in found.values() if stems.count(path.stem) == 1} | found
