"""Judgement: the result of judge(), with its table, its verdict and what to know about the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from whyformer._judge.finalist import Finalist
from whyformer._judge.plan import JudgePlan
from whyformer._judge.rows import RowTable
from whyformer._judge.table import HEADINGS, Table
from whyformer._judge.verdict import list_cautions, write_metric_sentence, write_verdict
from whyformer.data import Problem
from whyformer.results.result import Result
from whyformer.show import blocks
from whyformer.show.drawing import show_means
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DROPPED_FIRST = ("undetermined", "passes", "against chance", "against the best")  # from a table that is too wide


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

    def _report(self) -> blocks.Report:
        """A table and a sentence per metric, the verdict, and what to know about the data."""
        tables = [blocks.PageSection(self._heading(metric), self._tabulate(metric)) for metric in self.table.metrics]
        every = blocks.Fold("All metrics", tables, is_printed=True)
        shown: list[blocks.Block] = [
            every,
            *self.sentences,
            blocks.Paragraph(self.verdict, "strong"),
            blocks.Notes(self.cautions),
        ]
        return blocks.Report("Which explanation to trust", shown, is_titled=False)

    def _tabulate(self, metric: str) -> list[blocks.Block]:
        about = blocks.Paragraph(self.table.descriptions[metric], "dim")
        return [about, blocks.DataTable(HEADINGS, self.table.cells(metric), droppable=DROPPED_FIRST)]

    def _heading(self, metric: str) -> str:
        return f"{metric} ({self.table.better[metric]} is better)"


def encode_utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
