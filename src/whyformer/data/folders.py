"""Folders of images: one folder per class, or all images in one; masks in a separate folder.

    photos/cat/1.jpg                photos/images/cat/1.jpg       photos/1.jpg
    photos/dog/2.jpg                photos/masks/cat/1.png        photos/2.jpg

A mask has the name of its image; the suffix may differ. A glob pattern is all images that match, or all tables or tars
that match, one after the other.
"""

import glob
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.data.example import Data, DataError, Example, Problem, collect_examples


def find_images(folder: Path) -> Iterator[Path]:
    """All images below a folder, sorted by name, without hidden files. Links to folders are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
            yield folder / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from find_images(folder / entry.name)


def read_folder(folder: Path, masks: Path | None = None) -> Data:
    """Every image. Its class is the name of its folder, if the images are in folders."""
    images = folder
    if (folder / "images").is_dir():
        images = folder / "images"
        masks = masks or (folder / "masks" if (folder / "masks").is_dir() else None)
    mask_paths = find_mask_paths(masks) if masks is not None else None
    items = (item for path in find_images(images) for item in make_image_examples(images, path, mask_paths))
    return collect_examples(folder.name, items)


def make_image_examples(folder: Path, path: Path, masks: dict[str, Path] | None) -> Iterator[Example | Problem]:
    """The example of an image, after a problem if its mask is missing."""
    inner = path.relative_to(folder)
    if not path.is_file():
        yield Problem(str(inner), "not a regular file")
        return
    label = inner.parts[0] if len(inner.parts) > 1 else None
    mask = None
    if masks is not None:
        mask = masks.get(str(inner.with_suffix(""))) or masks.get(inner.stem)
        if mask is None:
            yield Problem(
                str(inner), "there is no mask with this name; the image is used without a mask", is_lost=False
            )
    yield Example(str(inner), path, label, mask)


def find_mask_paths(folder: Path) -> dict[str, Path]:
    """Masks by their path without suffix, and by file name alone where that is unique."""
    if not folder.is_dir():
        raise DataError(f"There is no mask folder {str(folder)!r}.")
    by_path = {str(path.relative_to(folder).with_suffix("")): path for path in find_images(folder) if path.is_file()}
    stems = Counter(path.stem for path in by_path.values())
    return {path.stem: path for path in by_path.values() if stems[path.stem] == 1} | by_path


# --- patterns ---------------------------------------------------------------------------------------------------------


PATTERN_CHARACTERS = "*?["


def is_pattern(path: Path) -> bool:
    """Whether this is a pattern, and not the name of a file or folder with such characters."""
    return bool(set(str(path)) & set(PATTERN_CHARACTERS)) and not path.exists()


def read_pattern(pattern: Path, read_file: Callable[[Path], Data]) -> Data:
    """Images with the name of their folder as class, if it matches a part of the pattern; else the files' examples."""
    files = [path for path in sorted(glob.glob(str(pattern), recursive=True)) if os.path.isfile(path)]
    if not files:
        raise DataError(f"No file matches {str(pattern)!r}.")
    are_images = [os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES for path in files]
    if all(are_images):
        fixed = itertools.takewhile(lambda part: not set(part) & set(PATTERN_CHARACTERS), pattern.parts)
        root = os.path.join("", *fixed)  # the folder before the first part with a pattern character
        return collect_examples(str(pattern), (make_image_example(root, path) for path in files))
    if any(are_images):
        other = files[are_images.index(False)]
        raise DataError(f"{str(pattern)!r} matches images and other files, such as {other!r}. Use a narrower pattern.")
    several = [read_file(Path(path)) for path in files]
    notes = tuple(dict.fromkeys(note for data in several for note in data.notes))
    return replace(collect_examples(str(pattern), join_data(several)), notes=notes)


def make_image_example(root: str, path: str) -> Example:
    inner = os.path.relpath(path, root) if root else path
    folder, _, _ = inner.replace(os.sep, "/").partition("/")
    return Example(inner, Path(path), folder if folder != inner else None)


def join_data(several: Iterable[Data]) -> Iterator[Example | Problem]:
    """The examples and problems of all data sets, in order."""
    for data in several:
        items: list[Example | Problem] = list(data.examples)
        for problem in data.problems:
            items.insert(problem.position if problem.is_lost else len(items), problem)
        yield from items
