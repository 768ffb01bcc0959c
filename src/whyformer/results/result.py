"""The base of every result: it renders as text, displays in a notebook, and saves to a file.

A subclass gives `render`, `to_html` (an HTML fragment for notebooks) and `formats`, a table from the suffix of a file
name to a function that makes the contents:

    class ClassGrid(Result):
        formats = {".html": class_grid_to_html, **DRAWING_FORMATS}
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from whyformer._plain import archive
from whyformer._plain.torch_state import neutral_torch
from whyformer.show.terminal import Screen


class Result(ABC):
    """What a verb returns: something to read, display and save."""

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]]

    @abstractmethod
    def render(self, screen: Screen | None = None) -> str:
        """The result as text for a terminal; without a screen, for standard output."""

    @abstractmethod
    def to_html(self) -> str:
        """An HTML fragment for a notebook."""

    @neutral_torch()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file. The suffix of its name chooses the format; `formats` lists them."""
        archive.write_file(path, self.formats[archive.suffix_of(path, self.formats)](self))

    @neutral_torch()
    def __str__(self) -> str:
        return self.render()

    @neutral_torch()
    def _repr_html_(self) -> str:
        return self.to_html()


def to_plain_text(result: Result) -> bytes:
    """The contents of a .txt file: 100 columns, no colours."""
    return (result.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace")


# For results that have a `draw()`.
DRAWING_FORMATS: Mapping[str, Callable[[Any], bytes]] = {
    ".png": lambda result: result.draw().png(),
    ".svg": lambda result: result.draw().svg().encode("utf-8"),
    ".pdf": lambda result: result.draw().pdf(),
}
