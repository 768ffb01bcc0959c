"""Glob patterns: all images that match, or all tables or tars that match, one after the other."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from whyformer.data.example import IMAGE_SUFFIXES, Data, DataError, Example, Problem, collect_examples

PATTERN_CHARACTERS = "*?["


def is_pattern(path: Path) -> bool:
    """Whether this is a pattern, and not the name of a file or folder with such characters."""
    return any(character in str(path) for character in PATTERN_CHARACTERS) and not path.exists()


def read_pattern(pattern: Path, read_file: Callable[[Path], Data]) -> Data:
    """Images with the name of their folder as class, if it matches a part of the pattern; else the files' examples."""
    found = sorted(glob.glob(str(pattern), recursive=True))
    files = [path for path in found if os.path.isfile(path)]
    if not files:
        raise DataError(f"No file matches {str(pattern)!r}.")
    are_images = [os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES for path in files]
    if all(are_images):
        root = find_fixed_folder(pattern)
        return collect_examples(str(pattern), (make_image_example(root, path) for path in files))
    if any(are_images):
        other = files[are_images.index(False)]
        raise DataError(f"{str(pattern)!r} matches images and other files, such as {other!r}. Use a narrower pattern.")
    several = [read_file(Path(path)) for path in files]
    notes = tuple(dict.fromkeys(note for data in several for note in data.notes))
    return replace(collect_examples(str(pattern), join_data(several)), notes=notes)


def find_fixed_folder(pattern: Path) -> str:
    """The folder before the first part with a pattern character."""
    parts = pattern.parts
    fixed = next(i for i, part in enumerate(parts) if any(character in part for character in PATTERN_CHARACTERS))
    return str(Path(*parts[:fixed])) if fixed else ""


def make_image_example(root: str, path: str) -> Example:
    inner = os.path.relpath(path, root) if root else path
    folder, _, _ = inner.replace(os.sep, "/").partition("/")
    return Example(inner, Path(path), folder if folder != inner else None)


def join_data(several: Iterable[Data]) -> Iterator[Example | Problem]:
    """The examples and problems of all data sets, in order."""
    for data in several:
        lost = iter([problem for problem in data.problems if problem.is_lost])
        following = next(lost, None)
        position = 0
        for example in data.examples:
            while following is not None and following.position == position:
                yield following
                following, position = next(lost, None), position + 1
            yield example
            position += 1
        if following is not None:
            yield following
        yield from lost
        yield from (problem for problem in data.problems if not problem.is_lost)
