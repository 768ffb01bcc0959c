"""The base of every result: it renders as text, displays in a notebook, and saves to a file.

A subclass says what it shows in `_report`, once for the terminal, notebooks and pages, and in `formats`, which of the
formats below it has; these may need more:

    class ClassGrid(Result):
        formats = choose_formats(".html .png .svg .pdf .csv .parquet")     needs _report, draw, _list_rows
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from PIL import Image

from whyformer._plain import archive
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import InputError
from whyformer.results._fields import to_safetensors
from whyformer.show import latex, markdown_report, page, score_rows
from whyformer.show.blocks import Report
from whyformer.show.drawing import find_axes, show_image
from whyformer.show.terminal import Screen
from whyformer.show.terminal_report import render_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Captured = TypeVar("Captured")


class Result(ABC):
    """What a verb returns: something to read, display and save."""

    formats: ClassVar[Mapping[str, Callable[..., bytes]]]  # by the suffix of a file: what makes its contents
    csv_columns: ClassVar[Sequence[str]] = score_rows.ScoreRow._fields  # of a .csv file

    def render(self, screen: Screen | None = None) -> str:
        """The result as text for a terminal; without a screen, for standard output."""
        return render_report(self._report(), screen or Screen.from_stdout())

    def to_html(self) -> str:
        """An HTML fragment for a notebook."""
        return page.make_report_fragment(self._report())

    def _report(self) -> Report:
        """What is shown, as blocks (show/blocks.py)."""
        raise NotImplementedError

    @neutral_torch()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file. The suffix of its name chooses the format; `formats` lists them."""
        archive.write_file(path, self.formats[archive.suffix_of(path, self.formats)](self))

    def records(self) -> Sequence[Mapping[str, object]]:
        """The result as a table: one mapping per row, as in a .csv file."""
        rows = getattr(self, "_list_rows", None)
        if rows is None:
            raise InputError(f"A {type(self).__name__} has no table.", code="E_OPTION")
        return [dict(zip(self.csv_columns, row, strict=True)) for row in rows()]

    def to_pandas(self) -> "DataFrame":
        """The same as a data frame of pandas."""
        return make_data_frame(self.records())

    @neutral_torch()
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the result into axes of matplotlib, by default into the current ones, and return them."""
        axes = find_axes(ax)
        self._draw_into(axes)
        return axes

    def _draw_into(self, axes: "Axes") -> None:
        """By default the figure, as an image."""
        if ".png" not in self.formats:
            raise InputError(f"A {type(self).__name__} has no figure. Print it or save it.", code="E_OPTION")
        show_image(axes, Image.open(BytesIO(self.formats[".png"](self))))

    def show(self) -> None:
        """Display the result here: in a notebook as it displays itself, elsewhere as text."""
        if not display_in_notebook(self):
            print(self)

    def to_fields(self) -> archive.WrittenFields:
        """Everything as tensors and plain values, for a file."""
        return vars(self)

    @neutral_torch()
    def __str__(self) -> str:
        return self.render()

    @neutral_torch()
    def _repr_html_(self) -> str:
        return self.to_html()


class LoadableResult(Result):
    """A result that can be read back from its file."""

    @classmethod
    @abstractmethod
    def _from_fields(cls, saved: archive.Fields) -> Self:
        """The result from the fields of its file."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved file; the scores come back bit for bit."""
        return archive.read_archive(path, name_kind(cls), cls._from_fields)


def make_data_frame(records: Sequence[Mapping[str, Any]]) -> "DataFrame":
    require_pandas()
    from pandas import DataFrame

    return DataFrame(list(records))


def require_pandas() -> None:
    if find_spec("pandas") is None:
        raise InputError("to_pandas() needs pandas: pip install pandas. records() works without.")


def display_in_notebook(result: Result) -> bool:
    """Display it if this is a notebook; False elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if ipython is None or shell is None or not hasattr(shell, "kernel"):
        return False
    ipython.display.display(result)
    return True


def require_captured(value: Captured | None, reason: str) -> Captured:
    """The value, or an error that says why it is not there."""
    if value is None:
        raise InputError(reason, code="E_NOT_CAPTURED")
    return value


def name_kind(result: type[Result]) -> str:
    """The kind of result, as its files name it."""
    return result.__name__.lower()


def to_plain_text(result: Result) -> bytes:
    """The contents of a .txt file: 100 columns, no colours."""
    return (result.render(Screen(width=100, colours=None)) + "\n").encode("utf-8", "backslashreplace")


FORMATS: Mapping[str, Callable[..., bytes]] = {
    ".safetensors": lambda result: to_safetensors(name_kind(type(result)), result.to_fields()),
    ".json": lambda result: archive.to_json_text(name_kind(type(result)), result.to_fields()).encode("ascii"),
    ".html": lambda result: page.make_report_page(result._report()).encode("utf-8"),
    ".png": lambda result: result.draw().png(),
    ".svg": lambda result: result.draw().svg().encode("utf-8"),
    ".pdf": lambda result: result.draw().pdf(),
    ".tex": lambda result: latex.to_latex(result.panels()).encode("utf-8"),
    ".md": lambda result: markdown_report.write_report(result._report()).encode("utf-8", "backslashreplace"),
    ".csv": lambda result: score_rows.as_csv(result.csv_columns, result._list_rows()),
    ".parquet": lambda result: score_rows.as_parquet(result._list_rows()),
    ".txt": to_plain_text,
}


def choose_formats(suffixes: str) -> Mapping[str, Callable[..., bytes]]:
    """The formats with these suffixes, in this order."""
    return {suffix: FORMATS[suffix] for suffix in suffixes.split()}


DRAWING_FORMATS = choose_formats(".png .svg .pdf")  # for results that have a `draw()`
