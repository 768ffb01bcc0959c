"""whyformer bulk-summary: what the model looks at, from the explanations of a bulk run."""

from pathlib import Path
from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, output, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    "whyformer bulk-summary runs/photos -o summary.html",
    "whyformer bulk-summary runs/photos -M my/folder --masks masks/ --json",
    "whyformer bulk-summary runs/tickets --no-test -o findings.csv",
)


@app.command("bulk-summary", epilog=EXAMPLES)
def run_bulk_summary(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a bulk run: plan.json and parts/.")],
    model: Annotated[
        Word, make_option("-M --model", "The model for the tests. Default: the one that the run names.", "MODEL")
    ] = None,
    data: Annotated[
        Word, make_option("--data", "The data of the run, if its images were not files: tars, tables.", "DATA")
    ] = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    method: Annotated[
        Word, make_option("-m --method", "The method to summarise. Default: the first.", "METHOD")
    ] = None,
    masks: options.MasksOption = None,
    mask_values: options.MaskValuesOption = "binary",
    metadata: Annotated[
        Path | None, make_option("--metadata", "More about the items: a CSV file with a column id.", "FILE")
    ] = None,
    test: Annotated[bool, make_option("--test/--no-test", "Rerun the model to find and test what it looks at.")] = True,
    class_limit: Annotated[
        int, make_option("--class-limit", "Examine at most N items of each class, drawn at random.", "N")
    ] = 400,
    test_limit: Annotated[int, make_option("--test-limit", "Rerun at most N items of each finding.", "N")] = 32,
    device: options.DeviceOption = None,
    seed: options.SeedOption = 0,
    out: Annotated[
        list[Path] | None, make_option("-o --out", "Save as .html, .json, .csv or .txt; repeatable.", "FILE")
    ] = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Find what the model looks at in a bulk run: maps and words per class, evidence, and what is suspicious."""

    for path in out or []:
        destination.check_out_file(path, None, why.BulkSummary.formats)
    examples = None if data is None else read_examples(data, column, None, split=split)
    running.silence_libraries()
    opened = running.open_quietly(model, device) if model is not None and test else None
    summary = why.summarise_bulk(
        folder, opened, data=examples, method=method, masks=masks, mask_values=mask_values,
        metadata=metadata, test=test, class_limit=class_limit, test_limit=test_limit, seed=seed,
    )  # fmt: skip
    running.show_result(summary, as_json=as_json)
    for path in out or []:
        summary.save(path)
    output.print_saved(*(out or []))
