"""Judgement: the result of judge(), with its table, its verdict and what to know about the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from whyformer._judge.finalist import Finalist
from whyformer._judge.plan import JudgePlan
from whyformer._judge.rows import RowTable
from whyformer._judge.table import HEADINGS, Line, Table, format_line
from whyformer._judge.verdict import list_cautions, write_metric_sentence, write_verdict
from whyformer.data import Problem
from whyformer.results.result import Result
from whyformer.show import report, terminal
from whyformer.show.axes import show_means
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DROPPED_FIRST = ("undetermined", "passes", "against chance", "against the best")  # from a table that is too wide
COLUMN_GAP = 2  # cells of the terminal


@dataclass(frozen=True, eq=False, repr=False)
class Judgement(Result):
    """How well each method does in each metric, and which one to use."""

    plan: JudgePlan
    rows: RowTable = field(repr=False)
    table: Table = field(repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)  # rows of the data that could not be used
    folder: Path | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)  # on the data as a whole
    finalist: Finalist | None = field(
        default=None, repr=False
    )  # how the recommended method depends on class and weights

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".csv": lambda judgement: encode_utf8(judgement.table.to_csv()),
        ".md": lambda judgement: encode_utf8(judgement.table.to_markdown()),
        ".txt": lambda judgement: encode_utf8(judgement.render(Screen(width=140, colours=None)) + "\n"),
    }

    def __repr__(self) -> str:
        data = self.plan.fields["data"]
        return (
            f"<Judgement of {len(self.plan.methods)} methods in {', '.join(self.table.metrics)} on {data['examples']} "
            f"examples of {make_visible(data['name'])}: {self.verdict.split('. ')[0].rstrip('.')}.>"
        )

    def records(self) -> list[dict[str, object]]:
        """The lines of the table: one mapping per method and metric."""
        return self.table.records()

    def _draw_into(self, axes: "Axes") -> None:
        """The means of the first metric with their intervals, best on top."""
        metric = self.table.metrics[0]
        show_means(
            axes, [(make_visible(line.method), line.mean, line.low, line.high) for line in self.table.of(metric)]
        )
        axes.set_title(self._heading(metric))

    @property
    def verdict(self) -> str:
        """Which method to use on this data, what to mind about it, and which are no better than the controls."""
        return write_verdict(self.table, self.finalist)

    @property
    def sentences(self) -> list[str]:
        """One sentence per metric."""
        return [write_metric_sentence(self.table, metric) for metric in self.table.metrics]

    @property
    def cautions(self) -> list[str]:
        """What to know about the data before trusting the table."""
        explains_labels = self.plan.fields["target"] == "label"
        return [*self.notes, *list_cautions(self.rows, self.problems, explains_labels=explains_labels)]

    @property
    def failed(self) -> int:
        """The number of rows without a value because something failed."""
        return sum(line.failed for line in self.table.lines)

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: a table and a sentence per metric, the verdict, and what to know about the data."""
        screen = screen or Screen.from_stdout()
        columns = self._choose_columns(screen.width)
        parts: list[RenderableType] = []
        for metric in self.table.metrics:
            parts += [Text(make_visible(self._heading(metric)), "bold")]
            parts += [Text(make_visible(self.table.descriptions[metric]), "dim"), self._grid(metric, columns), ""]
        if dropped := [heading for heading in HEADINGS if heading not in columns]:
            about = f"Left out to fit {screen.width} columns: {', '.join(dropped)}. A saved .csv has them."
            parts += [Text(about, "dim"), ""]
        parts += [Text(make_visible(line)) for line in self.sentences]
        parts += ["", Text(make_visible(self.verdict), "bold")]
        parts += [Text(make_visible(line), "dim") for line in self.cautions]
        return terminal.render_parts(parts, screen)

    def to_html(self) -> str:
        """A fragment of HTML for notebooks: the verdict and a table per metric."""
        parts = []
        for metric in self.table.metrics:
            parts += [make_element("h3", self._heading(metric)), make_element("p", self.table.descriptions[metric])]
            parts.append(report.make_table(HEADINGS, self.table.cells(metric)))
        return report.make_fragment(make_element("p", self.verdict), *parts, report.make_notes(self.cautions))

    def _heading(self, metric: str) -> str:
        return f"{metric} ({self.table.better[metric]} is better)"

    def _grid(self, metric: str, columns: Mapping[str, int]) -> Grid:
        """The table of a metric. columns: the headings to show, with the width of their cells."""
        grid = Grid(box=None, pad_edge=False, header_style="dim")
        for heading, width in columns.items():
            grid.add_column(heading, justify="right" if heading in ("mean", "n") else "left", width=width)
        for line in self.table.of(metric):
            cells = dict(zip(HEADINGS, describe_cells(line), strict=True))
            grid.add_row(*(Text(cells[heading]) for heading in columns))
        return grid

    def _choose_columns(self, width: int) -> dict[str, int]:
        """The headings whose cells fit side by side, with the widths that they need; the first columns stay."""
        words = [heading.split() for heading in HEADINGS]  # a heading may be wrapped, a cell not
        cells = zip(*map(describe_cells, self.table.lines), strict=True)
        columns = {
            heading: max(map(cell_len, [*shown, *least]))
            for heading, shown, least in zip(HEADINGS, cells, words, strict=True)
        }
        for heading in DROPPED_FIRST:
            if sum(columns.values()) + COLUMN_GAP * (len(columns) - 1) > width:
                del columns[heading]
        return columns


def describe_cells(line: Line) -> list[str]:
    return [make_visible(line.method), *format_line(line)]


def encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
