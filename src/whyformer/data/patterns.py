"""Glob patterns: all images that match, or all tables or tars that match, one after the other."""

import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from whyformer.data.example import IMAGE_SUFFIXES, Data, DataError, Example, Problem, collect_examples

PATTERN_CHARACTERS = "*?["


def is_pattern(path: Path) -> bool:
    """Whether this is a pattern, and not the name of a file or folder with such characters."""
    return bool(set(str(path)) & set(PATTERN_CHARACTERS)) and not path.exists()


def read_pattern(pattern: Path, read_file: Callable[[Path], Data]) -> Data:
    """Images with the name of their folder as class, if it matches a part of the pattern; else the files' examples."""
    found = sorted(glob.glob(str(pattern), recursive=True))
    files = [path for path in found if os.path.isfile(path)]
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
