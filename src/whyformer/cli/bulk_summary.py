"""whyformer bulk-summary: what the model looks at, from the explanations of a bulk run."""

from pathlib import Path
from typing import Any

import whyformer as why
from whyformer.cli import destination, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Word, Words
from whyformer.cli.shell import app

EXAMPLES = (
    "whyformer bulk-summary runs/photos -o summary.html",
    "whyformer bulk-summary runs/photos -M my/folder --masks masks/ --json",
    "whyformer bulk-summary runs/tickets --no-test -o findings.csv",
)


@app.command(
    "bulk-summary",
    of="summarise_bulk",
    examples=EXAMPLES,
    folder="The folder of a bulk run: plan.json and parts/.",
    model="The model for the tests. Default: the one that the run names.",
    data=("The data of the run, if its images were not files: tars, tables.", "DATA"),
    method="The method to summarise. Default: the first.",
    metadata=("More about the items: a CSV file with a column id.", "FILE"),
)
def run_bulk_summary(
    *, folder: Path, model: Word, data: Word, split: Word, columns: Words, out_files: list[Path] | None, **settings: Any
) -> None:
    """Find what the model looks at in a bulk run: maps and words per class, evidence, and what is suspicious."""
    for path in out_files or []:
        destination.check_out_file(path, None, why.BulkSummary.formats)
    examples = None if data is None else read_examples(data, columns, None, split=split)
    running.silence_libraries()
    opened = running.open_quietly(model) if model is not None and settings["test"] else None
    summary = why.summarise_bulk(folder, opened, data=examples, **settings)
    running.show_result(summary, *(out_files or []))
