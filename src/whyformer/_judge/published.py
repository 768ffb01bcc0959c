"""reproduce(): a published table beside the same table measured here.

    reproduce("chefer-segmentation", "ImageNet-Segmentation/", "google/vit-base-patch16-224")

With the paper's model and data the numbers should agree; with others only the order of the methods can be compared, and
that is what is said below the table. Published numbers were read from the authors' tables; where there is only a figure
(ERASER movies), from a third party's run of the authors' code, which is said; where none could be had (AttCAT), none is
shown.
"""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import label_methods
from whyformer._judge import Judgement, judge
from whyformer._judge.table import format_mean
from whyformer._model.model import Model
from whyformer._plain import archive
from whyformer._plain.statistics import bootstrap
from whyformer.data import Data, read
from whyformer.errors import InputError, suggest_nearest
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS
from whyformer.results.comparison import rank_correlation
from whyformer.show import terminal
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

NamedSettings = tuple[str, Mapping[str, Any]]  # a method or metric by name, and its settings
BASELINE_RECIPE = {"recipe": "chefer_baseline"}


@dataclass(frozen=True)
class PaperColumn:
    """One column of a published table, and how it is measured."""

    name: str
    metric: NamedSettings
    target: str = "predicted"
    scale: float = 1.0
    at: int | None = None  # the step of the metric's curve, where the column is one of several


@dataclass(frozen=True)
class PaperTable:
    name: str
    title: str
    source: str  # where the published numbers are from
    model: str  # the paper's
    data: str
    methods: Mapping[str, NamedSettings]  # by the paper's name for it
    columns: Sequence[PaperColumn]
    published: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # by the same name
    remark: str = ""


VIT = "ViT-B/16 at 224 pixels (google/vit-base-patch16-224)"
CHEFER_METHODS: dict[str, NamedSettings] = {
    "rollout": ("rollout", {"start": 1}),
    "raw attention": ("raw_attention", {}),
    "GradCAM": ("grad_cam", {}),
    "LRP": ("lrp", BASELINE_RECIPE),
    "partial LRP": ("partial_lrp", BASELINE_RECIPE),
    "ours": ("transformer_attribution", {"preset": "released_vit"}),
}
POSITIVE_PERTURBATION: NamedSettings = ("positive_perturbation", {})
NEGATIVE_PERTURBATION: NamedSettings = ("negative_perturbation", {})
SEGMENTATION_COLUMNS = (
    PaperColumn("pixel accuracy", ("pixel_accuracy", {}), scale=100),
    PaperColumn("mAP", ("mean_average_precision", {}), scale=100),
    PaperColumn("mIoU", ("mean_iou", {}), scale=100),
)
WORD_COUNTS = tuple(range(5, 81, 5))

PAPER_TABLES = {
    one.name: one
    for one in (
        PaperTable(
            "chefer-perturbation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 1: perturbation AUC",
            "the paper's table",
            VIT,
            "the ImageNet validation set: 50,000 pictures in folders named by class",
            CHEFER_METHODS,
            (
                PaperColumn("negative, predicted", NEGATIVE_PERTURBATION),
                PaperColumn("negative, target", NEGATIVE_PERTURBATION, "label"),
                PaperColumn("positive, predicted", POSITIVE_PERTURBATION),
                PaperColumn("positive, target", POSITIVE_PERTURBATION, "label"),
            ),
            {
                "rollout": (53.1, None, 20.05, None),
                "raw attention": (45.55, None, 23.99, None),
                "GradCAM": (41.52, 42.02, 34.06, 33.56),
                "LRP": (43.49, 43.49, 41.94, 41.93),
                "partial LRP": (50.49, 50.49, 19.64, 19.64),
                "ours": (54.16, 55.04, 17.03, 16.04),
            },
            "Area under accuracy over 0 to 90 % of the pixels, times 100, not divided by 0.9.",
        ),
        PaperTable(
            "chefer-segmentation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 2: ImageNet-Segmentation",
            "the paper's table",
            VIT,
            "ImageNet-Segmentation: 4,276 pictures in images/, masks of the same names in masks/",
            CHEFER_METHODS,
            SEGMENTATION_COLUMNS,
            {
                "rollout": (73.54, 84.76, 55.42),
                "raw attention": (67.84, 80.24, 46.37),
                "GradCAM": (64.44, 71.60, 40.82),
                "LRP": (51.09, 55.68, 32.89),
                "partial LRP": (76.31, 84.67, 57.94),
                "ours": (79.70, 86.03, 61.95),
            },
        ),
        PaperTable(
            "chefer-ablation",
            "Chefer, Gur & Wolf, CVPR 2021, Table 3: ablation of their method",
            "the paper's table",
            VIT,
            "ImageNet-Segmentation for the first three columns, the ImageNet validation set for the others",
            {
                "without the gradient": ("transformer_attribution", {"ablation": "no_gradient", "start": 1}),
                "last block only": ("transformer_attribution", {"ablation": "last_block"}),
                "block 1 only": ("transformer_attribution", {"ablation": "block_1"}),
                "ours": ("transformer_attribution", {"preset": "released_vit"}),
            },
            (
                *SEGMENTATION_COLUMNS,
                PaperColumn("positive", POSITIVE_PERTURBATION),
                PaperColumn("negative", NEGATIVE_PERTURBATION),
            ),
            {
                "without the gradient": (77.66, 85.66, 59.88, 18.23, 52.88),
                "last block only": (78.32, 85.25, 59.93, 18.01, 52.43),
                "block 1 only": (60.30, 73.63, 39.06, 27.33, 37.42),
                "ours": (79.70, 86.03, 61.95, 17.03, 54.16),
            },
        ),
        PaperTable(
            "eraser-movies",
            "Chefer, Gur & Wolf, CVPR 2021, figure: token-F1 of the k highest words, ERASER movie reviews",
            "a rerun of the authors' code by a third party; the paper itself has only a figure",
            "BERT-base fine-tuned on the movie reviews (the authors' checkpoint)",
            "ERASER movies: docs/ and test.jsonl",
            {
                "rollout": ("rollout", {"preset": "released_bert"}),
                "raw attention": ("raw_attention", {"own": "zero"}),
                "GradCAM": ("grad_cam", {"form": "bert"}),
                "LRP": ("lrp", {**BASELINE_RECIPE, "own": "zero"}),
                "partial LRP": ("partial_lrp", {**BASELINE_RECIPE, "own": "zero"}),
                "ours": ("transformer_attribution", {"preset": "released_bert"}),
            },
            tuple(PaperColumn(f"k = {k}", ("token_f1", {}), "label", at=i) for i, k in enumerate(WORD_COUNTS)),
            {
                "ours": (.0358, .0646, .0904, .1123, .1309, .1484, .1631, .1759, .1887, .1988, .2089, .2180, .2276,
                         .2352, .2426, .2501),
                "partial LRP": (.0339, .0614, .0843, .1043, .1221, .1393, .1549, .1694, .1805, .1910, .2011, .2113,
                                .2207, .2284, .2360, .2425),
                "raw attention": (.0309, .0549, .0739, .0897, .1025, .1157, .1277, .1401, .1513, .1597, .1700, .1803,
                                  .1885, .1969, .2042, .2129),
                "GradCAM": (.0178, .0326, .0458, .0592, .0716, .0824, .0928, .1022, .1116, .1196, .1261, .1326, .1392,
                            .1436, .1488, .1536),
                "LRP": (.0122, .0242, .0332, .0439, .0520, .0600, .0670, .0750, .0819, .0884, .0947, .1003, .1056,
                        .1105, .1154, .1216),
                "rollout": (.0033, .0087, .0150, .0230, .0300, .0384, .0473, .0557, .0628, .0697, .0767, .0826, .0890,
                            .0960, .1026, .1088),
            },
            "The labelled class is explained. The authors cut scores below 0 off before they rank words; here they are "
            "kept, which matters for LRP alone.",
        ),
        PaperTable(
            "attcat",
            "Qiang et al., NeurIPS 2022: AOPC, log-odds and class discrimination",
            "",
            "BERT-base fine-tuned on SST-2, IMDB and others",
            "the development sentences of SST-2, or 2,000 texts of another set",
            {
                "raw attention": ("raw_attention", {}),
                "rollout": ("rollout", {}),
                "Grads": ("grads", {}),
                "AttGrads": ("attgrads", {"preset": "released"}),
                "partial LRP": ("partial_lrp", {}),
                "TransAtt": ("transformer_attribution", {"preset": "released_bert"}),
                "CAT": ("cat", {}),
                "AttCAT": ("attcat", {}),
            },
            (
                PaperColumn("AOPC, released", ("aopc", {"preset": "released"}), "label"),
                PaperColumn("AOPC", ("aopc", {}), "label"),
                PaperColumn("log-odds, released", ("log_odds", {"preset": "released"}), "label"),
                PaperColumn("confidence, released", ("class_discrimination", {"preset": "released"}), "label"),
                PaperColumn("confidence", ("class_discrimination", {}), "label"),
            ),
            {},
            "The paper's numbers could not be had offline, so none are shown. `released` is what its code computes.",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class PaperCell:
    published: float | None
    measured: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A published table beside ours."""

    table: PaperTable
    model: str
    data: str
    examples: int
    cells: Mapping[tuple[str, str], PaperCell]  # by the paper's name of the method, and the column
    judgements: Mapping[str, Judgement] = field(repr=False)  # by the class that was explained

    def __str__(self) -> str:
        return self.render()

    def render(self, screen: Screen | None = None) -> str:
        """Published / measured, and how alike the two orders are."""
        parts: list[Any] = [Text(make_visible(self.table.title), "bold"), Text(make_visible(self._about), "dim")]
        parts += [self._grid(), ""]
        parts += [Text(make_visible(line)) for line in self.sentences]
        parts += [Text(make_visible(line), "dim") for line in self.remarks]
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    @property
    def failed(self) -> int:
        """Rows that have no number because something failed."""
        return sum(judgement.failed for judgement in self.judgements.values())

    @property
    def _about(self) -> str:
        source = f"Published: {self.table.source}." if self.table.source else "Published: no numbers at hand."
        return f"{source} Measured: {self.model} on {self.examples} examples of {self.data}."

    def _grid(self) -> Grid:
        """Methods beside each other where there are many columns, below each other else."""
        names, columns = list(self.table.methods), [column.name for column in self.table.columns]
        grid = Grid(box=None, pad_edge=False, header_style="dim")
        is_turned = len(columns) > 6
        grid.add_column("published / measured")
        for heading in names if is_turned else columns:
            grid.add_column(heading, justify="right")
        for first in columns if is_turned else names:
            keys = [(name, first) for name in names] if is_turned else [(first, column) for column in columns]
            grid.add_row(Text(make_visible(first)), *(format_paper_cell(self.cells[key]) for key in keys))
        return grid

    @property
    def sentences(self) -> list[str]:
        """For each column, whether the order of the methods is that of the paper."""
        said = []
        for column in self.table.columns:
            held = {n: self.cells[n, column.name] for n in self.table.methods}
            both = {n: c for n, c in held.items() if c.published is not None and c.measured == c.measured}
            if len(both) < 3:
                continue
            better = METRICS[column.metric[0]].better
            pick = max if better == "higher" else min
            theirs = pick(both, key=lambda n: float(both[n].published or 0))
            ours = pick(both, key=lambda n: both[n].measured)
            rho = rank_agreement([float(c.published or 0) for c in both.values()], [c.measured for c in both.values()])
            best = f"best is {ours} in both" if ours == theirs else f"best is {theirs} there, {ours} here"
            said.append(f"{column.name} ({better} is better): {best}; rank correlation of the orders {rho:+.2f}.")
        return said

    @property
    def remarks(self) -> list[str]:
        own = [self.table.remark] if self.table.remark else []
        model = f"The paper's model: {self.table.model}. The paper's data: {self.table.data}."
        cautions = [line for judgement in self.judgements.values() for line in judgement.cautions]
        return [*own, model, *dict.fromkeys(cautions)]

    def csv(self) -> str:
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(["method", "column", "published", "measured", "low", "high"])
        for (method, column), cell in self.cells.items():
            numbers = [cell.measured, cell.low, cell.high]
            written = [f"{n:.6g}" if n == n else "" for n in numbers]
            writer.writerow([method, column, "" if cell.published is None else cell.published, *written])
        return sink.getvalue()

    def markdown(self) -> str:
        """For a page: one row a method, or one a column where there are many."""
        names, columns = list(self.table.methods), [column.name for column in self.table.columns]
        if len(columns) > 6:
            rows = [[column, *(format_paper_cell(self.cells[name, column]) for name in names)] for column in columns]
            head = ["published / measured", *names]
        else:
            rows = [[name, *(format_paper_cell(self.cells[name, column]) for column in columns)] for name in names]
            head = ["published / measured", *columns]
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def format_paper_cell(cell: PaperCell) -> str:
    published = "-" if cell.published is None else f"{cell.published:g}"
    return f"{published} / {format_mean(cell.measured)}"


def rank_agreement(one: Sequence[float], other: Sequence[float]) -> float:
    import torch

    return float(rank_correlation(torch.tensor([one, other], dtype=torch.float64))[0, 1])


def reproduce(
    name: str,
    data: Any,
    model: ModelLike | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    limit: int | None = None,
) -> Reproduction:
    """Measure a published table on this data and model: one of TABLES, e.g. "chefer-segmentation".

    data: what `whyformer.data.read` takes. model: the paper's, if it is here, or any. out: resumes there.
    """
    table = find_paper_table(name)
    if model is None:
        raise InputError(f"Which model? The paper's is {table.model}; any other can be given and is said to be one.")
    explained = as_model(model)
    examples = number_synset_labels(read(data), explained).sample(limit)
    methods = {row: label_methods([fill_settings(METHODS, one)]) for row, one in table.methods.items()}
    wanted = [fill_settings(METHODS, one) for one in table.methods.values()]
    judgements = {}
    for target in dict.fromkeys(column.target for column in table.columns):
        metrics = {repr(c.metric): fill_settings(METRICS, c.metric) for c in table.columns if c.target == target}
        folder = None if out is None else Path(out) / target
        judgements[target] = judge(
            explained, examples, wanted, list(metrics.values()), out=folder, target=target, batch=batch, report=False
        )
    cells = {}
    for row in table.methods:
        label = next(iter(methods[row]))
        for number, column in enumerate(table.columns):
            published = table.published.get(row)
            found = read_paper_cell(judgements[column.target], label, column)
            cells[row, column.name] = PaperCell(published[number] if published else None, *found)
    made = Reproduction(table, explained.name, examples.name, len(examples), cells, judgements)
    if out is not None:
        archive.write_file(Path(out) / f"{name}.csv", made.csv().encode())
    return made


def read_paper_cell(judgement: Judgement, method: str, column: PaperColumn) -> tuple[float, float, float]:
    """The figure and its interval, in the paper's unit."""
    label = format_metric_label(column.metric)
    if column.at is None:
        line = next(one for one in judgement.table.lines if (one.metric, one.method) == (label, method))
        found = (line.mean, line.low, line.high)
    else:
        rows = judgement.rows
        curves = rows.curves(rows.methods.index(method), rows.metrics.index(label))
        found = bootstrap(curves[:, column.at] if curves is not None else [])
    return found[0] * column.scale, found[1] * column.scale, found[2] * column.scale


def format_metric_label(metric: NamedSettings) -> str:
    name, settings = metric
    written = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{name}({written})" if written else name


def fill_settings(registry: Mapping[str, Any], wanted: NamedSettings) -> Any:
    """A registered function with its settings."""
    name, settings = wanted
    return partial(registry[name].compute, **settings) if settings else name


def find_paper_table(name: str) -> PaperTable:
    if name not in PAPER_TABLES:
        raise InputError(
            f"No table {name!r}.{suggest_nearest(name, PAPER_TABLES)} There are: {', '.join(PAPER_TABLES)}."
        )
    return PAPER_TABLES[name]


def number_synset_labels(data: Data, model: Model) -> Data:
    """Folders of ImageNet are called n01440764 and so on: in the order of their names they are the classes."""
    labels = sorted({str(one.label) for one in data.examples if one.label is not None})
    are_synsets = bool(labels) and all(re.fullmatch(r"n\d{8}", label) for label in labels)
    if not are_synsets or len(labels) != len(model.labels or ()):
        return data
    numbers = {label: place for place, label in enumerate(labels)}
    return replace(data, examples=tuple(replace(one, label=numbers[str(one.label)]) for one in data.examples))
