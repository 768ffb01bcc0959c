"""whyformer compare-runs: what changed between two bulk runs."""

from pathlib import Path
from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, output, running
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    "whyformer compare-runs runs/epoch-3 runs/epoch-9 -o changes.html",
    "whyformer compare-runs runs/march runs/april -m attnlrp --json",
)
FOLDER_HELP = "The folder of a bulk run: plan.json and parts/."


@app.command("compare-runs", epilog=EXAMPLES)
def run_compare_runs(
    a: Annotated[Path, typer.Argument(metavar="A", help=FOLDER_HELP)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The folder of another run, which A is compared with.")],
    method: Annotated[
        Word, make_option("-m --method", "The method to compare. Default: the first of A.", "METHOD")
    ] = None,
    class_limit: Annotated[
        int, make_option("--class-limit", "Compare at most N items of each class, drawn at random.", "N")
    ] = 400,
    seed: options.SeedOption = 0,
    out: Annotated[
        list[Path] | None, make_option("-o --out", "Save as .html, .json, .csv or .txt; repeatable.", "FILE")
    ] = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Compare two bulk runs, of two checkpoints or two months: whose evidence moved, with tests and effect sizes."""

    for path in out or []:
        destination.check_out_file(path, None, why.RunComparison.formats)
    comparison = why.compare_runs(a, b, method=method, class_limit=class_limit, seed=seed)
    running.show_result(comparison, as_json=as_json)
    for path in out or []:
        comparison.save(path)
    output.print_saved(*(out or []))
