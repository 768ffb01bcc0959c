"""judge(): methods x metrics x examples, resumable, then a table with intervals, a verdict and a report."""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.table import Table as Grid
from rich.text import Text

import whyformer.metrics  # noqa: F401 (fills METRICS)
from whyformer._engine.target import TargetNames
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodCall, MethodLike, label_methods
from whyformer._judge.bench import Bench, is_chance
from whyformer._judge.plan import JudgePlan, make_judge_plan, write_or_check_plan
from whyformer._judge.rows import RowTable, Store, lock_folder
from whyformer._judge.table import Table, format_line, tabulate_rows
from whyformer._judge.verdict import format_count, list_cautions, write_metric_sentence, write_verdict
from whyformer._model.model import Model
from whyformer._plain import archive
from whyformer._plain.progress import format_duration, is_interactive, show_progress
from whyformer.data import Data, Problem, read
from whyformer.errors import InputError, MethodError, MetricError, TargetError
from whyformer.methods._registry import METHODS
from whyformer.metrics._registry import METRICS, MetricLike
from whyformer.metrics._registry import MetricCall as Measure
from whyformer.metrics._registry import choose_metric as choose_metric
from whyformer.metrics._registry import find_metric as find_metric
from whyformer.show import terminal
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible

PROGRESS_INTERVAL = 20.0  # seconds between two lines about progress where nobody watches a terminal

# What is measured if nothing is asked for, as far as the data has the truth for it.
DEFAULT_METRICS = {
    "image": ("positive_perturbation", "negative_perturbation"),
    "text": ("comprehensiveness", "sufficiency"),
    "tensors": ("comprehensiveness", "sufficiency"),
    "mask": ("pixel_accuracy", "mean_average_precision", "mean_iou"),
    "rationale": ("token_f1", "auprc"),
}


@dataclass(frozen=True, eq=False)
class Judgement:
    """What came out of judging: the table, what it says, and what must be known about the data."""

    plan: JudgePlan
    rows: RowTable = field(repr=False)
    table: Table = field(repr=False)
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    folder: Path | None = None

    @property
    def verdict(self) -> str:
        """In a plain sentence or two: what to use on this data, and what is no better than chance."""
        return write_verdict(self.table)

    @property
    def sentences(self) -> list[str]:
        return [write_metric_sentence(self.table, metric) for metric in self.table.metrics]

    @property
    def cautions(self) -> list[str]:
        unknown = sum(row.label < 0 and row.predicted >= 0 for row in self.rows.examples())
        said = f"{format_count(unknown, 'example', 'examples')} without a known label: what is predicted was explained."
        is_asked = self.plan.fields["target"] == "label" and unknown
        return list_cautions(self.rows, self.table, self.problems) + ([said] if is_asked else [])

    @property
    def failed(self) -> int:
        """Rows that have no number because something failed."""
        return sum(line.failed for line in self.table.lines)

    def __str__(self) -> str:
        return self.render()

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: a table for each metric, what it says, what to beware of."""
        parts: list[Any] = []
        for metric in self.table.metrics:
            parts += [
                Text(f"{make_visible(metric)} ({self.table.better[metric]} is better)", "bold"),
                self._grid(metric),
                "",
            ]
        parts += [Text(make_visible(line)) for line in self.sentences]
        parts += ["", Text(make_visible(self.verdict), "bold")]
        parts += [Text(make_visible(line), "dim") for line in self.cautions]
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def _grid(self, metric: str) -> Grid:
        grid = Grid(box=None, pad_edge=False, header_style="dim")
        grid.add_column("method", overflow="fold")
        for heading in ("mean", "95 %", "n", "against the best", "against chance", "passes"):
            grid.add_column(heading, justify="right" if heading in ("mean", "n") else "left")
        for line in self.table.of(metric):
            grid.add_row(Text(make_visible(line.method)), *format_line(line))
        return grid

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table: .csv for programs, .md for pages, .txt to be looked at."""
        formats = {
            ".csv": self.table.csv,
            ".md": self.table.markdown,
            ".txt": lambda: self.render(Screen(width=140, colours=None)) + "\n",
        }
        archive.write_file(path, formats[archive.suffix_of(path, formats)]().encode("utf-8", "backslashreplace"))


def judge(
    model: ModelLike,
    data: Any,
    methods: Literal["quick", "all"] | MethodLike | Sequence[MethodLike] = "quick",
    metrics: "MetricLike | Sequence[MetricLike] | None" = None,
    *,
    out: str | os.PathLike[str] | None = None,
    target: Any = "predicted",
    batch: int | None = None,
    limit: int | None = None,
    report: bool = True,
) -> Judgement:
    """Measure methods on data, next to chance, and say which to use.

    data: what `whyformer.data.read` takes, or what it gives. methods: names, functions or partials; "quick" are all
    of one pass, "all" every one. metrics: the same; without them, the usual ones for what is known of the data.
    out: a folder for the rows, the table and the report; judging the same again goes on where it stopped.
    target: the class to be explained: "predicted", "label", or one class for all.
    limit: so many examples, drawn at random. batch: examples at once; it is part of the plan.
    """
    model = as_model(model)
    data = read(data, limit=limit)
    chosen = choose_judged_methods(methods)
    measures = choose_judged_metrics(metrics, model, data)
    check_judged_target(target, model)
    plan = make_judge_plan(model, data, chosen, measures, target=target, batch=batch)
    bench = Bench(model, data, chosen, measures, target)
    if out is None:
        with tempfile.TemporaryDirectory() as temporary:
            return replace(run_judgement(bench, plan, Path(temporary)), folder=None)
    folder = Path(out)
    with lock_folder(folder):
        write_or_check_plan(plan, folder)
        judgement = run_judgement(bench, plan, folder)
        judgement.save(folder / "table.csv")
        judgement.save(folder / "table.txt")
        archive.write_file(
            folder / "problems.txt", "".join(f"{one}\n" for one in data.problems).encode("utf-8", "replace")
        )
        if report:
            write_judgement_report(judgement, bench, folder / "report.html")
    return judgement


def write_judgement_report(judgement: Judgement, bench: Bench, path: Path) -> None:
    """The page; where matplotlib is missing, hours of judging do not end in an error."""
    try:
        from whyformer._judge.report import make_judgement_page

        archive.write_file(path, make_judgement_page(judgement, bench).encode("utf-8", "backslashreplace"))
    except ModuleNotFoundError as error:
        print(f"There is no report: {error.name} is not installed. Judge the same again with it.", file=sys.stderr)


def run_judgement(bench: Bench, plan: JudgePlan, folder: Path) -> Judgement:
    """Make the rows that are missing, then the table of all."""
    store = Store(folder, plan)
    missing = [shard for shard in range(plan.shards) if not store.has(shard)]
    due = sum(len(plan.places(shard)) for shard in missing)
    began = told = time.monotonic()
    done = 0
    with show_progress(due, "judging") as progress:
        for shard in missing:
            store.write(shard, bench.make_shard(plan.places(shard)))
            done += len(plan.places(shard))
            progress.advance(len(plan.places(shard)))
            now = time.monotonic()
            if not is_interactive() and now - told > PROGRESS_INTERVAL:
                told = now
                left = format_duration((now - began) / done * (due - done))
                print(f"judging: {done} of {due} examples, {left} left", file=sys.stderr, flush=True)
    rows = RowTable(store)
    table = tabulate_rows(rows, bench.metrics)
    return Judgement(plan, rows, table, bench.data.problems, folder)


# --- what to judge ----------------------------------------------------------------------------------------------------


def choose_judged_methods(methods: Any) -> dict[str, MethodCall]:
    """The methods by label; chance is always one of them."""
    if methods == "quick":
        wanted: list[MethodLike] = [name for name, one in METHODS.items() if one.is_quick]
    elif methods == "all":
        wanted = list(METHODS)
    else:
        wanted = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    if not wanted:
        raise MethodError("No methods to judge. Name some, or give methods='quick'.")
    chosen = label_methods(wanted)
    if not any(is_chance(label) for label in chosen):
        chosen |= label_methods(["chance"])
    return chosen


def check_judged_target(target: Any, model: Model) -> None:
    """Refuse a class that no example can be explained for, before anything is run."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return
    if (isinstance(target, Sequence) and not isinstance(target, str)) or getattr(target, "ndim", 0) > 0:
        raise TargetError("The target of judge() is 'predicted', 'label', or one class for all examples.")
    if model.labels is not None:
        TargetNames(model, len(model.labels), is_language=False).index(target)


def choose_judged_metrics(metrics: Any, model: Model, data: Data) -> dict[str, Measure]:
    """The metrics by label, refused where they are for another kind of input."""
    if metrics is None:
        return choose_default_metrics(model, data)
    several = list(metrics) if isinstance(metrics, Sequence) and not isinstance(metrics, str) else [metrics]
    if not several:
        raise MetricError("No metrics to judge by. Name some.")
    chosen: dict[str, Measure] = {}
    for wanted in several:
        found, given = find_metric(wanted)
        settings = ", ".join(f"{name}={value!r}" for name, value in given.items())
        label = f"{found.name}({settings})" if settings else found.name
        if label in chosen:
            raise MetricError(f"{label} is named twice. Measure it once, or with different settings.")
        other = {"image": "texts", "text": "images"}.get(model.kind)
        if found.only is not None and found.only == other:
            raise InputError(
                f"{label} is for {found.only}; {model.name} takes {'texts' if other == 'images' else 'images'}."
            )
        chosen[label] = choose_metric(wanted)
    return chosen


def choose_default_metrics(model: Model, data: Data) -> dict[str, Measure]:
    """What the data has the truth for."""
    has = {
        "mask": any(one.mask is not None for one in data.examples),
        "rationale": any(one.rationale for one in data.examples),
    }
    names = [
        *DEFAULT_METRICS[model.kind],
        *(name for truth, there in has.items() if there for name in DEFAULT_METRICS[truth]),
    ]
    has_labels = any(one.label is not None for one in data.examples)
    chosen: dict[str, Measure] = {}
    for name in names:
        if name not in METRICS:
            continue
        settings: Mapping[str, Any] = {}
        if METRICS[name].needs_truth == "label" and not has_labels:
            settings = {"against": "prediction"}
        written = ", ".join(f"{setting}={value!r}" for setting, value in settings.items())
        chosen[f"{name}({written})" if written else name] = choose_metric(name, settings)
    return chosen
