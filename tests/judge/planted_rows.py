"""Tables from planted values, as if they had been measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from judge.bench_parts import FIRST_SCORE, a_plan

from whyformer._judge.rows import JudgeStore, Row, RowTable, Shard
from whyformer._judge.table import Table, tabulate_rows
from whyformer.metrics._registry import choose_metric


def rows_from(tmp_path, values, metric=FIRST_SCORE, **changes) -> RowTable:
    """Rows of one metric: values by method, one list entry an example."""
    return plant_rows(tmp_path, {metric.name: values}, **changes)


def plant_rows(tmp_path, by_metric, **changes) -> RowTable:
    """Rows of several metrics: values by the name of the metric and by method."""
    metrics = tuple(by_metric)
    methods = tuple(next(iter(by_metric.values())))
    count = len(next(iter(next(iter(by_metric.values())).values())))
    plan = a_plan(methods=("rollout",), metrics=(FIRST_SCORE,), batch=count)
    fields = {
        "methods": {method: {} for method in methods},
        "metrics": {metric: {} for metric in metrics},
        "data": {"name": "x", "examples": count, "fingerprint": "y"},
    }
    plan = replace(plan, fields={**plan.fields, **fields})
    held = []
    for e in range(count):
        for m in methods:
            for k in metrics:
                value = by_metric[k][m][e]
                row = value if isinstance(value, Row) else Row(e, f"{e}", m, k, value=value, forward=1.0)
                if math.isnan(row.value) and row.state == "measured":
                    row = replace(row, state="undefined", reason="none")
                held.append(replace(row, example=e, method=m, metric=k, label=e % 2, predicted=0, **changes))
    store = JudgeStore(tmp_path, plan)
    store.write(0, Shard(tuple(held)))
    return RowTable(store)


def table_of(tmp_path, values, metric=FIRST_SCORE) -> Table:
    return tabulate_rows(rows_from(tmp_path, values, metric), {metric.name: choose_metric(metric)})


def plant_table(tmp_path, by_metric: Mapping[str, Mapping[str, Sequence]], *, class_blind=(), kind=None) -> Table:
    """The table of planted values, by the name of the metric and by method."""
    calls = {metric: choose_metric(metric) for metric in by_metric}
    return tabulate_rows(plant_rows(tmp_path, by_metric), calls, class_blind=frozenset(class_blind), kind=kind)


def many(mean, count=40, spread=0.1, seed=0):
    return np.random.default_rng(seed).normal(mean, spread, count).tolist()
