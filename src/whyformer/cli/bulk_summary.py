"""whyformer bulk-summary: what the model looks at, from the explanations of a bulk run."""

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import destination, options, output, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer bulk-summary runs/photos -o summary.html

whyformer bulk-summary runs/photos -M my/folder --masks masks/ --json

whyformer bulk-summary runs/tickets --no-test -o clusters.csv"""


@app.command("bulk-summary", epilog=EXAMPLES)
def run_bulk_summary(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a bulk run: plan.json and parts/.")],
    model: Annotated[
        str | None,
        typer.Option(
            "-M", "--model", metavar="MODEL", help="The model for the tests. Default: the one that the run names."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="The data of the run, if its images were not files: tars, tables."),
    ] = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    method: Annotated[
        str | None,
        typer.Option("-m", "--method", metavar="METHOD", help="The method to summarise. Default: the first."),
    ] = None,
    masks: options.MasksOption = None,
    mask_values: options.MaskValuesOption = "binary",
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Rerun the model to test what each cluster looks at.")
    ] = True,
    per_class: Annotated[
        int, typer.Option("--per-class", metavar="N", help="Cluster at most N items of each class, drawn at random.")
    ] = 400,
    tested: Annotated[int, typer.Option("--tested", metavar="N", help="Rerun at most N items of each cluster.")] = 32,
    device: options.DeviceOption = None,
    seed: Annotated[int, typer.Option("--seed", help="The seed of all random draws.")] = 0,
    out: Annotated[
        list[Path] | None,
        typer.Option("-o", "--out", metavar="FILE", help="Save as .html, .json, .csv or .txt; repeatable."),
    ] = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Find what the model looks at in a bulk run: maps and words per class, clusters, and which are suspicious."""
    from whyformer._summary import BulkSummary, summarise_bulk
    from whyformer._summary.result import summary_to_json

    for path in out or []:
        destination.check_out_file(path, None, BulkSummary.formats)
    examples = None if data is None else read_examples(data, column, None, split=split)
    running.silence_libraries()
    opened = running.open_quietly(model, device) if model is not None and test else None
    summary = summarise_bulk(
        folder, opened, data=examples, method=method, masks=masks, mask_values=mask_values, test=test,
        per_class=per_class, tested=tested, seed=seed,
    )  # fmt: skip
    running.show_result(summary, to_json=summary_to_json if as_json else None)
    for path in out or []:
        summary.save(path)
    output.print_saved(*(out or []))
