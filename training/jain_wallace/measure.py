"""Measure trained models as Jain & Wallace did.

    python -m training.jain_wallace.measure --models FOLDER --data DATA --out OUT

audits every model that train.py wrote to FOLDER on the test part of its task and writes to OUT

    rows/<model>.json      the numbers of each example; a model whose file is there is not measured again
    cells.json             the numbers of the tables, one entry per model (papers/src/whyformer_papers/
                           jain_wallace_measured.json is such a file)
    tables.md              every published table with ours beside it, and what each way of training changes
    figures/*.svg          the figures of the paper, for the first seed of the BiLSTM with additive attention

The adversarial search runs for the BiLSTM with additive attention only, on --searched examples; the published tables
have it for no other model. Without --models, only the files in OUT/rows are read.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from training.jain_wallace.tasks import JAIN_WALLACE_TASKS, JainWallaceTask, read_task

from whyformer.show.markdown_report import write_table
from whyformer_papers.jain_wallace_cells import OVERALL, CellGroup, ModelCell, summarise_cell
from whyformer_papers.jain_wallace_figures import draw_jain_wallace
from whyformer_papers.jain_wallace_models import load_jain_wallace, read_jain_wallace_facts
from whyformer_papers.jain_wallace_rows import JainWallaceRows, measure_jain_wallace
from whyformer_papers.jain_wallace_tables import (
    PAIR_NAMES,
    compare_tables,
    format_median,
    format_or_dash,
    format_spread,
)

FACTS = ("task", "encoder", "attention", "seed", "suffix")
TRAINING_FACTS = ("epochs", "epoch", "training", "vocabulary")


def measure_models(settings: argparse.Namespace) -> None:
    """Write the rows of every model that is not measured yet."""
    for folder in sorted(path for path in settings.models.iterdir() if path.is_dir()):
        file = settings.out / "rows" / f"{folder.name}.json"
        if file.exists():
            continue
        facts = {
            name: fact for name, fact in read_jain_wallace_facts(folder).items() if name not in ("words", "labels")
        }
        is_main = (facts["encoder"], facts["attention"]) == ("bilstm", "additive")
        tests = ["agreement", "replacement", *(["adversarial"] if is_main else [])]
        rows = measure_jain_wallace(
            load_jain_wallace(folder, settings.device), read_task(find_task(facts), settings.data)["test"],
            tests=tests, search_limit=settings.searched, limit=settings.limit,
        )  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"name": folder.name, "facts": facts, "rows": rows.to_fields()}), "utf-8")
        print(folder.name, rows.correlation("gradient"), rows.correlation("leave_one_out"), flush=True)


def find_task(facts: dict[str, Any]) -> JainWallaceTask:
    """The task with as many training texts as the model had: no generated text of test is among them."""
    task = JAIN_WALLACE_TASKS[facts["task"]]
    return replace(task, sizes=(facts["training"], *task.sizes[1:])) if task.is_generated else task


def read_results(folder: Path) -> Iterable[tuple[dict[str, Any], JainWallaceRows]]:
    for file in sorted(folder.glob("*.json")):
        held = json.loads(file.read_text("utf-8"))
        if "facts" in held:
            yield held["facts"], JainWallaceRows.from_fields(held["rows"])


def make_cells(results: Iterable[tuple[dict[str, Any], JainWallaceRows]]) -> list[ModelCell]:
    cells = []
    for facts, rows in results:
        quality = {name: round(value, 4) for name, value in facts["test"].items()}  # of the whole test part
        training = {name: facts[name] for name in TRAINING_FACTS}
        attention = {"largest": round(float(rows.columns["largest"].mean()), 4)} if has_weights(rows) else {}
        numbers = {**summarise_cell(rows), **quality, **training, **attention}
        cells.append(ModelCell(*(facts[name] for name in FACTS[:4]), numbers=numbers, suffix=facts["suffix"]))
    return cells


def has_weights(rows: JainWallaceRows) -> bool:
    """Whether the largest weights were measured: not without a test that replaces attention."""
    return bool((rows.columns["largest"] == rows.columns["largest"]).all())


def tabulate_training(cells: list[ModelCell], task: str) -> list[list[str]]:
    """One line per way of training: what each does to the BiLSTM with additive attention."""
    rows = [["trained", *PAIR_NAMES.values(), "permuted", "mean largest weight", "accuracy"]]
    chosen = [cell for cell in cells if cell.task == task and cell.model == ("bilstm", "additive")]
    for suffix in dict.fromkeys(cell.suffix for cell in chosen):
        group = CellGroup([cell for cell in chosen if cell.suffix == suffix])
        taus = [format_spread(group, pair, OVERALL) for pair in ("gradient", "leave_one_out", "yardstick")]
        permuted, largest = format_median(group, OVERALL, 0), format_or_dash(group.mean("largest"))
        rows.append([suffix or "as published", *taus, permuted, largest, format_or_dash(group.mean("accuracy"), 3)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="what train.py wrote")
    parser.add_argument("--data", type=Path, help="the folder with sst2/ and imdb/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--searched", type=int, default=300, help="number of examples in the adversarial search")
    parser.add_argument("--limit", type=int, help="number of test examples; by default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    if settings.models is not None:
        measure_models(settings)
    cells = make_cells(read_results(settings.out / "rows"))
    lines = ",\n".join(json.dumps(vars(cell), separators=(",", ":")) for cell in cells)
    (settings.out / "cells.json").write_text(f"[\n{lines}\n]\n", "utf-8")
    parts = [f"## {table.published.title}\n\n{table.to_markdown()}\n" for table in compare_tables(cells).values()]
    parts += [
        f"## {task}: ways of training\n\n{write_table(tabulate_training(cells, task))}\n" for task in ("sst2", "imdb")
    ]
    (settings.out / "tables.md").write_text("\n".join(parts), "utf-8")
    draw_figures(settings.out)


def draw_figures(out: Path) -> None:
    (out / "figures").mkdir(exist_ok=True)
    for facts, rows in read_results(out / "rows"):
        if [facts[name] for name in FACTS[1:]] == ["bilstm", "additive", 0, ""]:
            for name, drawing in draw_jain_wallace(rows, f"{facts['task']}, BiLSTM").items():
                drawing.save(out / "figures" / f"{facts['task']}-{name}.svg")


if __name__ == "__main__":
    main()
