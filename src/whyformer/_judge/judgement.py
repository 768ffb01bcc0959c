"""Judgement: the result of judge(), with its table, its verdict and what to know about the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table as Grid
from rich.text import Text

from whyformer._judge.plan import JudgePlan
from whyformer._judge.rows import RowTable
from whyformer._judge.table import HEADINGS, Table, format_line
from whyformer._judge.verdict import list_cautions, list_verdict, write_metric_sentence, write_verdict
from whyformer.data import Problem
from whyformer.results.result import Result
from whyformer.show import report, terminal
from whyformer.show.report import make_element
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

MAX_NAME_WIDTH = 24  # characters; longer names are broken on a narrow terminal


@dataclass(frozen=True, eq=False)
class Judgement(Result):
    """How well each method does in each metric, and which one to use."""

    plan: JudgePlan
    rows: RowTable = field(repr=False)
    table: Table = field(repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)  # rows of the data that could not be used
    folder: Path | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)  # on the data as a whole

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".csv": lambda judgement: encode_utf8(judgement.table.to_csv()),
        ".md": lambda judgement: encode_utf8(judgement.table.to_markdown()),
        ".txt": lambda judgement: encode_utf8(judgement.render(Screen(width=140, colours=None)) + "\n"),
    }

    @property
    def verdict(self) -> str:
        """Which method to use on this data, what to mind about it, and which are no better than the controls."""
        return write_verdict(self.table)

    @property
    def verdict_sentences(self) -> list[str]:
        """The sentences of the verdict, the most important first."""
        return list_verdict(self.table)

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
        parts: list[Any] = []
        for metric in self.table.metrics:
            parts += [Text(make_visible(self._heading(metric)), "bold")]
            parts += [Text(make_visible(self.table.descriptions[metric]), "dim"), self._grid(metric), ""]
        parts += [Text(make_visible(line)) for line in self.sentences]
        parts += ["", Text(make_visible(self.verdict), "bold")]
        parts += [Text(make_visible(line), "dim") for line in self.cautions]
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def to_html(self) -> str:
        """A fragment of HTML for notebooks: the verdict and a table per metric."""
        parts = []
        for metric in self.table.metrics:
            parts += [make_element("h3", self._heading(metric)), make_element("p", self.table.descriptions[metric])]
            parts.append(report.make_table(HEADINGS, self.table.cells(metric)))
        return report.make_fragment(make_element("p", self.verdict), *parts, report.make_notes(self.cautions))

    def _heading(self, metric: str) -> str:
        return f"{metric} ({self.table.better[metric]} is better)"

    def _grid(self, metric: str) -> Grid:
        grid = Grid(box=None, pad_edge=False, header_style="dim")
        longest = max(len(line.method) for line in self.table.of(metric))
        grid.add_column(HEADINGS[0], overflow="fold", min_width=min(longest, MAX_NAME_WIDTH))
        for heading in HEADINGS[1:]:
            grid.add_column(heading, justify="right" if heading in ("mean", "n") else "left")
        for line in self.table.of(metric):
            grid.add_row(Text(make_visible(line.method)), *format_line(line))
        return grid


def encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
