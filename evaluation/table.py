"""The tables of docs/judge-measured.md, from finished runs of run.py.

    python evaluation/table.py pets-reporting                                  all methods, one run
    python evaluation/table.py movies hatexplain sst2-reporting                several side by side
    python evaluation/table.py pets-reporting --pair gamma_attribution transformer_attribution

Each number is a mean with its 95 % interval. **Bold**: the best, and what is not significantly different from it.
≈: not significantly different from chance. <: worse than chance. --pair: the difference between two methods, paired by
example, with its interval and the p-value of the paired test.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from run import RUNS

from whyformer._judge.plan import JudgePlan
from whyformer._judge.rows import JudgeStore, RowTable
from whyformer._judge.table import Line, Table, collect_values, combine_of, tabulate_rows
from whyformer._plain.statistics import bootstrap, paired_test
from whyformer.metrics._registry import MetricCall, choose_metric

ARROWS = {"higher": "↑", "lower": "↓"}


@dataclass
class Finished:
    """A finished run, read from its folder; it may come from another machine."""

    rows: RowTable
    metrics: dict[str, MetricCall]

    @cached_property
    def table(self) -> Table:
        return tabulate_rows(self.rows, self.metrics)


def read_run(folder: Path) -> Finished:
    fields = json.loads((folder / "plan.json").read_text("utf-8"))
    fields.pop("fingerprint")
    rows = RowTable(JudgeStore(folder, JudgePlan(fields)))
    metrics = {label: choose_metric(label.split("(")[0], settings) for label, settings in fields["metrics"].items()}
    return Finished(rows, metrics)


def format_number(number: float) -> str:
    """Three digits, as the docs write them: .784, 12.6, −2.10."""
    digits = 1 if abs(number) >= 3 else 2 if abs(number) >= 1 else 3
    shown = f"{abs(number):.{digits}f}"
    return ("−" if number < 0 else "") + shown.removeprefix("0")


def format_cell(line: Line | None, tied: Sequence[str]) -> str:
    if line is None or line.mean != line.mean:
        return "–"
    shown = f"{format_number(line.mean)} [{format_number(line.low)}, {format_number(line.high)}]"
    shown = f"**{shown}**" if line.method in tied else shown
    if line.method == "chance" or line.p_chance != line.p_chance:
        return shown
    return shown + {None: " ≈", False: " <", True: ""}[line.beats_chance]


def print_methods(runs: dict[str, Finished]) -> None:
    """One row a method, in the order of its mean rank over all columns."""
    columns = [(name, metric) for name, judged in runs.items() for metric in judged.table.metrics]
    lines = {(name, metric): {line.method: line for line in runs[name].table.of(metric)} for name, metric in columns}
    methods = list(dict.fromkeys(method for column in lines.values() for method in column))
    ranks = {m: np.mean([column[m].rank if m in column else len(column) for column in lines.values()]) for m in methods}
    several = len(runs) > 1
    print(
        "| method |" + "".join(f" {heading(name if several else '', metric, runs[name])} |" for name, metric in columns)
    )
    print("|---" * (len(columns) + 1) + "|")
    for method in sorted(methods, key=lambda m: ranks[m]):
        cells = []
        for name, metric in columns:
            tied = [line.method for line in runs[name].table.tied(metric)]
            cells.append(format_cell(lines[name, metric].get(method), tied))
        print(f"| {method} | " + " | ".join(cells) + " |")


def heading(name: str, metric: str, judged: Finished) -> str:
    short = metric.split("(")[0].replace("_perturbation", "").replace("_", " ")
    return f"{name.split('-')[0]} {short} {ARROWS[judged.metrics[metric].metric.better]}".strip()


def print_pair(runs: dict[str, Finished], first: str, second: str) -> None:
    """first - second in every column, paired by example."""
    print(f"| {first} − {second} | {first} | {second} | difference | p |\n|---|---|---|---|---|")
    for name, judged in runs.items():
        for k, metric in enumerate(judged.rows.metrics):
            a, b = (
                collect_values(judged.rows, judged.rows.methods.index(m), k, judged.metrics[metric])
                for m in (first, second)
            )
            mean, low, high, p = compare_pairs(a, b, combine_of(judged.metrics[metric]))
            means = [average(values, combine_of(judged.metrics[metric])) for values in (a, b)]
            shown = f"{format_number(mean)} [{format_number(low)}, {format_number(high)}]"
            cells = [heading(name, metric, judged), *map(format_number, means), shown, f"{p:.4f}"]
            print(f"| {' | '.join(cells)} |")


def average(values: np.ndarray, combine: Callable[[Any], float] | None) -> float:
    return float(np.nanmean(values)) if combine is None else combine(values[~np.isnan(values).any(1)])


def compare_pairs(
    a: np.ndarray, b: np.ndarray, combine: Callable[[Any], float] | None
) -> tuple[float, float, float, float]:
    """The difference of the two means, its bootstrap interval, and the p-value of the paired test."""
    p = paired_test(a, b, combine=combine)
    if combine is None:
        return *bootstrap(a - b), p
    both = np.stack([a, b], -1)  # resample examples, then combine each method
    return *bootstrap(both, combine=lambda rows: combine(rows[..., 0]) - combine(rows[..., 1])), p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders in evaluation/runs")
    parser.add_argument("--pair", nargs=2, metavar="METHOD", action="append", help="repeatable")
    arguments = parser.parse_args()
    runs = {name: read_run(RUNS / name) for name in arguments.runs}
    if arguments.pair:
        for pair in arguments.pair:
            print_pair(runs, *pair)
    else:
        print_methods(runs)


if __name__ == "__main__":
    main()
