"""What every verb returns: a result renders as text, shows itself in a notebook, and saves to a file.

A subclass gives `render`, `to_html` (a fragment for notebooks) and `formats`, a table from the ending of a file name to
a function that makes its bytes:

    class Comparison(Result):
        formats = {".html": lambda c: comparison_page(c).encode(), ".json": ...}
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from whyformer._plain import archive
from whyformer.show.terminal import Screen


class Result(ABC):
    """Something to read, look at and keep."""

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]]

    @abstractmethod
    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal; without a screen, for standard output as it is."""

    @abstractmethod
    def to_html(self) -> str:
        """A fragment of HTML, for a notebook."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file. The ending of its name says the format; see `formats`."""
        archive.write_file(path, self.formats[archive.suffix_of(path, self.formats)](self))

    def __str__(self) -> str:
        return self.render()

    def _repr_html_(self) -> str:
        return self.to_html()
