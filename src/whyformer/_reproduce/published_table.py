"""PublishedTable: numbers as they were printed, and where they come from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from rich.table import Table as Grid
from rich.text import Text

from whyformer._judge.judgement import encode_utf8
from whyformer._judge.table import format_csv, format_markdown
from whyformer._reproduce.paper_tables import PaperTable, Source
from whyformer._reproduce.reproduction import MOST_COLUMNS
from whyformer.results.result import Result, to_plain_text
from whyformer.show import report, terminal
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible


class Spread(NamedTuple):
    """A mean over examples, its standard deviation, and the share of examples that are significant, if printed."""

    mean: float
    deviation: float
    share: float | None = None

    def __str__(self) -> str:
        share = "" if self.share is None else f" ({self.share:.2f})"
        digits = max(2, *(len(f"{number:g}".partition(".")[2]) for number in self[:2]))
        return f"{self.mean:.{digits}f}±{self.deviation:.{digits}f}{share}"


PublishedNumber: TypeAlias = float | Spread | None  # None: the paper has no number here


@dataclass(frozen=True)
class PublishedTable(Result):
    """One published table."""

    title: str
    source: Source
    columns: Sequence[str]
    rows: Mapping[str, Sequence[PublishedNumber]]
    note: str = ""

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".csv": lambda table: encode_utf8(format_csv(table.text_rows())),
        ".md": lambda table: encode_utf8(format_markdown(table.text_rows())),
        ".txt": to_plain_text,
    }

    def __post_init__(self) -> None:
        for row, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"{self.title}: the row {row!r} has {len(numbers)} of {len(self.columns)} numbers")

    def numbers(self) -> Iterator[float]:
        """Every number, in reading order."""
        for row in self.rows.values():
            for cell in row:
                if isinstance(cell, Spread):
                    yield from (number for number in cell if number is not None)
                elif cell is not None:
                    yield cell

    def text_rows(self) -> list[list[str]]:
        """The table as text; the first row is the header. With many columns it is turned round."""
        rows = [["", *self.columns], *([row, *map(format_published, cells)] for row, cells in self.rows.items())]
        return rows if len(self.columns) <= MOST_COLUMNS else [list(row) for row in zip(*rows, strict=True)]

    def render(self, screen: Screen | None = None) -> str:
        parts: list[Any] = [Text(make_visible(self.title), "bold"), Text(f"Source: {self.source}.", "dim")]
        parts.append(make_grid(self.text_rows()))
        parts += [Text(make_visible(self.note), "dim")] if self.note else []
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def to_html(self) -> str:
        header, *body = self.text_rows()
        return report.make_fragment(
            make_element("h3", self.title),
            make_element("p", f"Source: {self.source}. {self.note}", class_="dim"),
            report.make_table(header, body),
        )


def make_grid(
    rows: Sequence[Sequence[str]], *, labels: int = 1, style: Callable[[Sequence[str]], str] = lambda _: ""
) -> Grid:
    """Rows of text, of which the first is the header, for a terminal.

    labels: how many columns hold names; the others hold numbers. style: how a row is printed.
    """
    header, *body = rows
    is_wide = len(header) > MOST_COLUMNS
    grid = Grid(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0) if is_wide else (0, 1))
    for place, heading in enumerate(header):
        grid.add_column(heading, justify="left" if place < labels else "right")
    for row in body:
        grid.add_row(*(Text(make_visible(cell), style(row)) for cell in row))
    return grid


def format_published(number: PublishedNumber) -> str:
    if number is None:
        return "–"
    return str(number) if isinstance(number, Spread) else f"{number:g}"


def publish_paper_table(table: PaperTable) -> PublishedTable:
    """The numbers of a table that `judge` can measure, without columns that were not published."""
    if table.source is None:
        raise ValueError(f"{table.name} has no published numbers")
    kept = [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.published.values())]
    rows = {name: tuple(row[i] for i in kept) for name, row in table.published.items()}
    return PublishedTable(table.title, table.source, [table.columns[i].name for i in kept], rows, table.remark)
