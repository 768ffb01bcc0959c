"""reproduce(): a published table next to the same table measured here.

    reproduce("chefer-segmentation", "ImageNet-Segmentation/", "google/vit-base-patch16-224")

With the paper's model and data the numbers should agree. With another model or other data only the order of the methods
can be compared; the lines below the table do that, pair by pair (published_order.py). The output says where the
published numbers come from. Where none were available (AttCAT), none are shown.
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import RenderableType

from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import label_methods
from whyformer._judge.judgement import Judgement, encode_utf8
from whyformer._judge.order import MIN_EXAMPLES, PairOrder, compare_pairs
from whyformer._judge.run import judge
from whyformer._judge.table import collect_values, combine_of, format_csv, format_mean
from whyformer._plain.statistics import bootstrap
from whyformer._runs.arguments import check_run_folder, check_run_number, read_run_data
from whyformer._runs.choice import format_metric_label
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.errors import InputError
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS, MetricCall, choose_metric
from whyformer.results.comparison import rank_correlation
from whyformer.show.score_rows import as_csv_cell
from whyformer.show.terminal import Screen
from whyformer_papers.document import Request, Section
from whyformer_papers.paper_tables import NamedSettings, PaperColumn, PaperTable, find_paper_table
from whyformer_papers.published_order import describe_orders, rank_pairs
from whyformer_papers.synsets import number_synset_labels
from whyformer_papers.table_result import MOST_COLUMNS, TableOutline, TableResult, TextRows, make_grid

COLUMNS_AT_ONCE = 4  # on a terminal, of a table that has as many rows
MIN_METHODS = 3  # with both numbers, to compare the order


@dataclass(frozen=True)
class PaperCell:
    """One published number, and the same number measured here with its 95 % interval."""

    published: float | None
    measured: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Reproduction(TableResult):
    """A published table next to the same table measured here."""

    table: PaperTable
    model: str
    data: str
    examples: int
    cells: Mapping[tuple[str, str], PaperCell]  # by the paper's name of the method, and by column
    judgements: Mapping[str, Judgement] = field(repr=False)  # by the explained class: "predicted", "label"
    orders: Mapping[str, Sequence[PairOrder]] = field(default_factory=dict, repr=False)  # by column
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)  # the method's label in the judgements, by row

    formats: ClassVar[Mapping[str, Callable[..., bytes]]] = {
        **TableResult.formats,
        ".txt": lambda reproduction: encode_utf8(reproduction.render(Screen(width=140, colours=None)) + "\n"),
    }

    def outline(self) -> TableOutline:
        source = f"Published: {self.table.source}." if self.table.source else "Published: no numbers available."
        cells = " Cells: published / measured." if self.table.published else ""
        about = f"{source} Measured: {self.model} on {self.examples} examples of {self.data}.{cells}"
        return TableOutline(self.table.title, self._text_rows(), about, self.sentences, self.remarks)

    def make_grids(self) -> list[RenderableType]:
        """With many methods and many columns, some columns at a time below each other."""
        columns = [column.name for column in self.table.columns]
        if len(self.table.methods) <= MOST_COLUMNS or len(columns) <= MOST_COLUMNS:
            tables = [self._text_rows()]
        else:
            starts = range(0, len(columns), COLUMNS_AT_ONCE)
            tables = [self._list_rows(columns[start : start + COLUMNS_AT_ONCE]) for start in starts]
        return [part for rows in tables for part in (make_grid(rows, tight_from=len(rows[0]) + 1), "")]

    def to_csv(self) -> str:
        rows: list[list[str | float | None]] = [["method", "column", "published", "measured", "low", "high"]]
        for (method, column), cell in self.cells.items():
            numbers = [f"{n:.6g}" if n == n else "" for n in (cell.measured, cell.low, cell.high)]
            rows.append(
                [as_csv_cell(method), as_csv_cell(column), "" if cell.published is None else cell.published, *numbers]
            )
        return format_csv(rows)

    @property
    def failed(self) -> int:
        """The number of rows without a value because something failed."""
        return sum(judgement.failed for judgement in self.judgements.values())

    def _text_rows(self) -> TextRows:
        """One row per method, or one row per column if there are many columns."""
        columns = [column.name for column in self.table.columns]
        rows = self._list_rows(columns)
        return rows if len(columns) <= MOST_COLUMNS else [list(row) for row in zip(*rows, strict=True)]

    def _list_rows(self, columns: Sequence[str]) -> TextRows:
        """One row per method, for these columns."""
        head = "published / measured" if self.table.published else "measured"
        write = format_paper_cell if self.table.published else lambda cell: format_mean(cell.measured)
        rows = [[name, *(write(self.cells[name, column]) for column in columns)] for name in self.table.methods]
        return [[head, *columns], *rows]

    @property
    def sentences(self) -> list[str]:
        """For each column, whether the methods are in the paper's order, and how sure each pair of them is."""
        return [
            f"{column.name} ({METRICS[column.metric[0]].better} is better): {text}."
            for column in self.table.columns
            if (text := self._describe_column(column))
        ]

    def _describe_column(self, column: PaperColumn) -> str:
        cells = {name: self.cells[name, column.name] for name in self.table.methods}
        measured = {name: cell.measured for name, cell in cells.items() if cell.measured == cell.measured}
        published = {name: number for name in measured if (number := cells[name].published) is not None}
        pick_best = max if METRICS[column.metric[0]].better == "higher" else min
        pairs = self.orders.get(column.name, ())
        if not published and self.table.claims:  # orders that the paper states in words
            return "; ".join(f"{pair.better} over {pair.worse} {format_pair(pair, column.scale)}" for pair in pairs)
        if not published and pairs:
            order = sorted(measured, key=measured.__getitem__, reverse=pick_best is max)
            place = f"{self.table.first} is {order.index(self.table.first) + 1} of {len(order)} here"
            each = "; ".join(f"over {pair.worse} {format_pair(pair, column.scale)}" for pair in pairs)
            return f"{place}, the best is {order[0]}; {describe_orders(pairs)}: {self.table.first} {each}"
        if len(published) < MIN_METHODS:
            return ""
        best = describe_best(*(pick_best(published, key=one.__getitem__) for one in (published, measured)))
        both = [list(published.values()), [measured[name] for name in published]]
        rho = write_signed(float(rank_correlation(torch.tensor(both, dtype=torch.float64))[0, 1]))
        counts = f"; {describe_orders(pairs)}" if pairs else ""
        return f"{best}; rank correlation of the orders {rho}{counts}"

    @property
    def remarks(self) -> list[str]:
        """What to know about the table, the paper's model and data, and the data used here."""
        own = [self.table.remark] if self.table.remark else []
        paper = f"The paper's model: {self.table.model}. The paper's data: {self.table.data}."
        cautions = [line for judgement in self.judgements.values() for line in judgement.cautions]
        return [*own, paper, *dict.fromkeys(cautions)]


def format_pair(pair: PairOrder, scale: float) -> str:
    """What became of a claimed order, with the difference measured here, its interval and the examples."""
    difference, low, high = (f"{number * scale:+.3g}" for number in (pair.difference, pair.low, pair.high))
    of = f"{pair.count} examples" if pair.count == pair.total else f"{pair.count} of {pair.total} examples"
    interval = f" [{low}, {high}]" if pair.low == pair.low else f"; at least {MIN_EXAMPLES} are needed"
    return f"{pair.verdict} ({difference}{interval}, {of})"


def write_signed(number: float) -> str:
    """A correlation; that of orders with one value only is undefined."""
    return f"{number:+z.2f}" if number == number else "undefined"


def describe_best(theirs: str, ours: str) -> str:
    return f"best is {ours} in both" if ours == theirs else f"best is {theirs} there, {ours} here"


def format_paper_cell(cell: PaperCell) -> str:
    published = "-" if cell.published is None else f"{cell.published:g}"
    return f"{published} / {format_mean(cell.measured)}"


def reproduce(
    name: str | PaperTable,
    data: DataLike,
    model: ModelLike | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    split: str | None = None,
    columns: Mapping[str, Hashable] | None = None,
    classes: ClassNames | None = None,
) -> Reproduction:
    """Measure a published table on this data and model.

    name: one of PAPER_TABLES, such as "chefer-segmentation", or a table of the same kind.
    data: anything that `whyformer.data.read` accepts. model: the paper's model, or another one.
    split, columns, classes: as for judge(). out: a folder for the rows; the same call resumes an interrupted run.
    """
    table = name if isinstance(name, PaperTable) else find_paper_table(name)
    if model is None:
        raise InputError(f"Pass model= to name a model. The paper used {table.model}.", code="E_OPTION")
    folder = check_run_folder(out)
    if limit is not None:
        check_run_number("limit", limit, least=1)
    explained = as_model(model)
    examples = number_synset_labels(read_run_data(data, split, columns, classes), explained).sample(limit)
    methods = {row: fill_settings(METHODS, wanted) for row, wanted in table.methods.items()}
    judgements = {}
    for target in dict.fromkeys(column.target for column in table.columns):
        metrics = {repr(c.metric): fill_settings(METRICS, c.metric) for c in table.columns if c.target == target}
        judgements[target] = judge(
            explained, examples, list(methods.values()), list(metrics.values()), target=target, batch_size=batch_size,
            out=None if folder is None else folder / target, report=False,
        )  # fmt: skip
    labels = {row: next(iter(label_methods([method]))) for row, method in methods.items()}
    cells = {}
    for row, label in labels.items():
        for column, published in zip(table.columns, table.published.get(row, [None] * len(table.columns)), strict=True):
            measured = read_paper_cell(judgements[column.target], label, column)
            cells[row, column.name] = PaperCell(published, *measured)
    orders = {
        column.name: order_paper_column(judgements[column.target], labels, table, column) for column in table.columns
    }
    reproduction = Reproduction(table, explained.name, examples.name, len(examples), cells, judgements, orders, labels)
    if folder is not None:
        reproduction.save(folder / f"{table.name}.csv")
    return reproduction


def measure_table(request: Request, table: str | PaperTable) -> Section:
    """A table of a document, measured on what the request has."""
    assert request.data is not None
    name = table if isinstance(table, str) else table.name
    made = reproduce(
        table, request.data, request.model, out=request.folder(name), batch_size=request.batch_size, limit=request.limit
    )
    return Section(name, made)


def find_curves(judgement: Judgement, method: str, column: PaperColumn) -> np.ndarray | None:
    """[example step]: the curve of every example; None if there is none."""
    rows = judgement.rows
    return rows.curves(rows.methods.index(method), rows.metrics.index(format_metric_label(*column.metric)))


def read_paper_cell(judgement: Judgement, method: str, column: PaperColumn) -> tuple[float, float, float]:
    """The measured number and its interval, in the paper's unit."""
    if column.step is None:
        lines = judgement.table.of(format_metric_label(*column.metric))
        measured = next((line.mean, line.low, line.high) for line in lines if line.method == method)
    else:
        curves = find_curves(judgement, method, column)
        measured = bootstrap(curves[:, column.step] if curves is not None else [])
    mean, low, high = (number * column.scale for number in measured)
    return mean, low, high


def order_paper_column(
    judgement: Judgement, labels: Mapping[str, str], table: PaperTable, column: PaperColumn
) -> list[PairOrder]:
    """Every pair of methods that this column of the table ranks, as measured here."""
    chosen, index = choose_metric(*column.metric), table.columns.index(column)
    published = {row: number for row, numbers in table.published.items() if (number := numbers[index]) is not None}
    pairs = list(table.claims)
    if published:
        pairs = rank_pairs(published, chosen.metric.better)
    elif table.first:
        pairs = [(table.first, row) for row in table.methods if row != table.first]
    ranked = dict.fromkeys(row for pair in pairs for row in pair)
    values = {row: read_paper_values(judgement, labels[row], column, chosen) for row in ranked}
    return compare_pairs(pairs, values, chosen.metric.better, combine_of(chosen) if column.step is None else None)


def read_paper_values(judgement: Judgement, method: str, column: PaperColumn, chosen: MetricCall) -> np.ndarray:
    """What a column is computed from: [example], or [example part] for a metric of the whole data set."""
    rows = judgement.rows
    if column.step is None:
        k = rows.metrics.index(format_metric_label(*column.metric))
        return collect_values(rows, rows.methods.index(method), k, chosen)
    curves = find_curves(judgement, method, column)
    return np.full(len(rows.value), np.nan) if curves is None else curves[:, column.step]


def fill_settings(registry: Mapping[str, Any], wanted: NamedSettings) -> Any:
    """A registered method or metric with its settings."""
    name, settings = wanted
    return partial(registry[name].compute, **settings) if settings else name
