"""judge(): methods x metrics x examples, resumable, then a table with intervals, a verdict and a report."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from whyformer._engine import TargetLike
from whyformer._explain.explain import ModelLike, as_model
from whyformer._explain.method_call import MethodLike
from whyformer._judge.bench import Bench
from whyformer._judge.controls import add_controls
from whyformer._judge.finalist import check_finalist
from whyformer._judge.judgement import Judgement, encode_utf8
from whyformer._judge.plan import JudgePlan
from whyformer._judge.table import tabulate_rows
from whyformer._judge.verdict import find_winner
from whyformer._plain import archive
from whyformer._plain.progress import Wait, show_activity
from whyformer._plain.torch_state import neutral_torch
from whyformer._runs.arguments import (
    ColumnNames,
    check_run_counts,
    check_run_data,
    check_run_flag,
    check_run_folder,
    read_run_data,
)
from whyformer._runs.choice import (
    MetricsLike,
    choose_judged_methods,
    choose_judged_metrics,
    read_run_target,
    refuse_missing_truth,
    refuse_other_kind,
)
from whyformer._runs.lock import lock_folder
from whyformer._runs.plan import write_or_check_plan
from whyformer._runs.preparation import find_kind_of_input
from whyformer.data.data_like import DataLike
from whyformer.data.example import ClassNames
from whyformer.show.page import make_report_page
from whyformer.show.visible import make_visible


@neutral_torch()
def judge(
    model: ModelLike,
    data: DataLike,
    methods: Literal["quick", "all"] | MethodLike | Sequence[MethodLike] = "quick",
    metrics: MetricsLike = None,
    *,
    out: str | os.PathLike[str] | None = None,
    target: TargetLike = None,
    batch_size: int | None = None,
    limit: int | None = None,
    split: str | None = None,
    columns: ColumnNames | None = None,
    classes: ClassNames | None = None,
    report: bool = True,
) -> Judgement:
    """Measure methods on data, next to chance and other controls, and recommend one that beats them.

    data: anything that `whyformer.data.read` accepts, or its result.
    methods: names, functions or partials; "quick" is every method that needs one pass, "all" is every method. Methods
        that divide a text into words can be compared in tokens: partial(kernel_shap, units="token").
    metrics: names, functions or partials; by default, those that fit the input and the ground truth in the data.
    out: a folder for rows, table and report. The same call resumes a run that was interrupted.
    target: the class to explain: by default the predicted one; "label" (the true class), one class for all examples, or
        one of whyformer.targets, also as text ("group:cat,dog").
    split, columns, classes: which part of the data, its columns by role, and what the model calls its labels, as for
        `whyformer.data.read`.
    limit: use this many examples, sampled at random. batch_size: examples per batch; it is part of the plan.
    report: check how the recommended method depends on class and weights, and write report.html into `out`.
    """
    folder = check_run_folder(out)
    check_run_data(data)
    check_run_flag("report", report)
    check_run_counts(batch_size=batch_size, limit=limit)
    chosen_methods = choose_judged_methods(methods)
    model = as_model(model)
    data = read_run_data(data, split, columns, classes, limit=limit)
    refuse_other_kind(model, data)
    chosen_metrics = choose_judged_metrics(metrics, model, data)
    target = read_run_target(target, model)
    refuse_missing_truth(model, data, chosen_metrics, target)
    kind = find_kind_of_input(model, data)
    bench = Bench(model, data, add_controls(chosen_methods, kind), chosen_metrics, target, kind, batch_size)
    plan = bench.plan
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return replace(run_judgement(bench, plan, Path(temporary), checks_finalist=report), folder=None)
    with lock_folder(folder):
        write_or_check_plan(plan, folder)
        judgement = run_judgement(bench, plan, folder, checks_finalist=report)
        judgement.save(folder / "table.csv")
        judgement.save(folder / "table.txt")
        problems = "".join(f"{make_visible(str(problem))}\n" for problem in data.problems)
        archive.write_file(folder / "problems.txt", encode_utf8(problems))
        if report:
            from whyformer._judge.report import make_judgement_report  # matplotlib takes a while

            with show_activity(Wait("writing the report")):
                page = make_report_page(make_judgement_report(judgement, bench))
                archive.write_file(folder / "report.html", encode_utf8(page))
    return judgement


def run_judgement(bench: Bench, plan: JudgePlan, folder: Path, *, checks_finalist: bool) -> Judgement:
    """Compute the rows that are missing, then the table of all rows, and check the method that it recommends."""
    rows = bench.measure(plan, folder, "judging")
    table = tabulate_rows(rows, bench.metrics, class_blind=bench.class_blind, kind=bench.kind)
    winner = find_winner(table) if checks_finalist else None
    finalist = None if winner is None else check_finalist(bench, winner, folder)
    return Judgement(plan, rows, table, bench.data.problems, folder, bench.data.notes, finalist)
