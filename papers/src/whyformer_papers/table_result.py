"""TableResult: what every table of a document has in common, in the terminal, in a notebook and in files."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from whyformer._judge.judgement import encode_utf8
from whyformer._judge.table import format_csv
from whyformer.results.result import Result, to_plain_text
from whyformer.show import report, terminal
from whyformer.show.markdown_report import write_table
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

MOST_COLUMNS = 6  # a table with more columns is turned round

TextRows = list[list[str]]  # the first row is the header


@dataclass(frozen=True)
class TableOutline:
    """A table with its title and what is below the title and below the table."""

    title: str
    rows: TextRows
    about: str = ""  # below the title
    sentences: Sequence[str] = ()  # what the table shows
    remarks: Sequence[str] = ()  # what to know about it
    lead: str = ""  # on a page, instead of `about` and the remarks
    heading: str = "h3"  # on a page, the element of the title


class TableResult(Result):
    """A result that is one table."""

    formats: ClassVar[Mapping[str, Callable[..., bytes]]] = {
        ".csv": lambda table: encode_utf8(table.to_csv()),
        ".md": lambda table: encode_utf8(table.to_markdown()),
        ".txt": to_plain_text,
    }

    @abstractmethod
    def outline(self) -> TableOutline: ...

    def make_grids(self) -> Sequence[RenderableType]:
        """The table for a terminal."""
        return [make_grid(self.outline().rows)]

    def render(self, screen: Screen | None = None) -> str:
        made = self.outline()
        parts: list[RenderableType] = [Text(make_visible(made.title), "bold")]
        parts += [Text(make_visible(made.about), "dim")] if made.about else []
        parts += self.make_grids()
        parts += [Text(make_visible(line)) for line in made.sentences]
        parts += [Text(make_visible(line), "dim") for line in made.remarks]
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def to_html(self) -> str:
        made = self.outline()
        header, *body = made.rows
        lead = made.lead or made.about
        return report.make_fragment(
            make_element(made.heading, made.title),
            make_element("p", lead, class_="dim") if lead else None,
            report.make_table(header, body),
            report.make_notes([*made.sentences, *(() if made.lead else made.remarks)]),
        )

    def records(self) -> list[dict[str, str]]:
        """One mapping per row of the table."""
        header, *rows = self.outline().rows
        return [dict(zip(header, row, strict=True)) for row in rows]

    def to_csv(self) -> str:
        return format_csv(self.outline().rows)

    def to_markdown(self) -> str:
        return write_table(self.outline().rows)


def make_grid(
    rows: Sequence[Sequence[str]],
    *,
    labels: int = 1,
    style: Callable[[Sequence[str]], str] = lambda _: "",
    tight_from: int = MOST_COLUMNS + 1,
) -> Grid:
    """Rows of text, of which the first is the header, for a terminal.

    labels: how many columns hold names; the others hold numbers. style: how a row is printed. tight_from: how many
    columns stand close to each other.
    """
    header, *body = rows
    padding = (0, 1, 0, 0) if len(header) >= tight_from else (0, 1)
    grid = Grid(box=None, pad_edge=False, header_style="dim", padding=padding)
    for index, heading in enumerate(header):
        grid.add_column(heading, justify="left" if index < labels else "right")
    for row in body:
        grid.add_row(*(Text(make_visible(cell), style(row)) for cell in row))
    return grid
