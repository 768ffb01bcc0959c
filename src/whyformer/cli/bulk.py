"""whyformer bulk: explain a whole data set, and resume where it stopped."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import whyformer as why
from whyformer.cli import destination, output, parsing, running
from whyformer.cli.collection import resume_collection
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import DEFAULT_MODEL, Number, Word, Words
from whyformer.cli.shared_options import AS_JSON
from whyformer.cli.shell import app
from whyformer.errors import InputError

EXAMPLES = (
    "whyformer bulk photos/ -M google/vit-base-patch16-224 -m gamma_attribution -o runs/photos",
    "whyformer bulk reviews.csv -M demo/sentiment -m libragrad -m rollout -o runs/reviews",
    "whyformer bulk 's3-mirror/train-*.tar' -M my/vit --engine ray --address auto --device cuda -o runs/train",
)
DATA_HELP = (
    "A folder of images, a table (.csv .tsv .jsonl .parquet), webdataset tars, a glob pattern, or - for paths or texts "
    "on standard input."
)


@app.command(
    "bulk",
    of="bulk",
    without=("out",),
    examples=EXAMPLES,
    data=DATA_HELP,
    out_folder="The folder for the rows; repeat the command to resume.",
    methods="Method, with optional settings, e.g. 'rollout(start=1)'. Repeatable.",
    memory=("Choose the batch size so that a worker needs at most this much.", "GB"),
)
def run_bulk(
    *, data: str, out_folder: Path, model: str = DEFAULT_MODEL, methods: Words, memory: float | None, split: Word,
    columns: Words, classes: Words, windows: bool, overlap: Number, **settings: Any,
) -> None:  # fmt: skip
    """Explain every item of a data set into Parquet files. Resumes where it stopped; a bad item never stops it."""
    settings["methods"] = parsing.parse_methods(methods) if methods else None
    settings["windows"] = windows if overlap is None else overlap
    if memory is not None and not memory > 0:
        raise InputError(f"--memory must be > 0, got {memory:g}.", code="E_OPTION")
    settings["memory"] = None if memory is None else max(1, int(memory * 1e9))
    destination.check_out_folder(out_folder)
    running.silence_libraries()
    examples = read_examples(data, columns, classes, split=split)
    resume_collection()
    run = why.bulk(model, examples, out=out_folder, **settings)
    if AS_JSON.get():
        output.print_text(json.dumps({**asdict(run), "folder": str(run.folder)}, indent=1))
    else:
        output.print_prose(run)
    running.end_run(out_folder, failed=run.failed)
