"""whyformer bulk: explain a whole data set, and resume where it stopped."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import whyformer as why
from whyformer.cli import destination, options, output, parsing, running
from whyformer.cli.collection import resume_collection
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Number, Word, Words, list_examples, make_option
from whyformer.cli.shell import FAILED_EXIT_CODE, app
from whyformer.errors import InputError

DATA_HELP = (
    "A folder of images, a table (.csv .tsv .jsonl .parquet), webdataset tars, a glob pattern, or - for paths or texts "
    "on standard input."
)
OUT_HELP = "The folder for the rows; repeat the command to resume."

EXAMPLES = list_examples(
    "whyformer bulk photos/ -M google/vit-base-patch16-224 -m gamma_attribution -o runs/photos",
    "whyformer bulk reviews.csv -M demo/sentiment -m libragrad -m rollout -o runs/reviews",
    "whyformer bulk 's3-mirror/train-*.tar' -M my/vit --engine ray --address auto --device cuda -o runs/train",
)


@app.command("bulk", epilog=EXAMPLES)
def run_bulk(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    out: Annotated[Path, options.make_folder_option(OUT_HELP)],
    model: options.ModelOption = options.DEFAULT_MODEL,
    method: Annotated[
        Words, options.make_method_option("Method, with optional settings, e.g. 'rollout(start=1)'. Repeatable.")
    ] = None,
    target: options.OneTargetOption = None,
    device: options.DeviceOption = None,
    engine: Annotated[str, make_option("--engine", "Where the workers run: local or ray.")] = "local",
    address: Annotated[
        Word, make_option("--address", "The Ray cluster to join; without it Ray runs on this machine only.")
    ] = None,
    workers: Annotated[Number, make_option("--workers", "Worker processes; default: one per GPU or core.", "N")] = None,
    batch_size: options.BatchSizeOption = None,
    memory: Annotated[
        float | None, make_option("--memory", "Choose the batch size so that a worker needs at most this much.", "GB")
    ] = None,
    shard: Annotated[Number, make_option("--shard", "Items per file.", "N")] = None,
    threads: Annotated[
        Number, make_option("--threads", "Threads of each worker on the processor; default: 1.", "N")
    ] = None,
    loaders: Annotated[
        Number,
        make_option("--loaders", "Threads of each worker that read ahead; next to a GPU with a process each.", "N"),
    ] = None,
    limit: options.LimitOption = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    truncate: Annotated[bool, make_option("--truncate", "Cut texts that are too long for the model.")] = False,
    windows: options.WindowsOption = False,
    overlap: options.OverlapOption = None,
    maps: Annotated[bool, make_option("--maps", "Also store each map as a PNG.")] = False,
    check: Annotated[
        bool, make_option("--check", "Also ask the model with the highest words hidden, and with everything hidden.")
    ] = False,
    retry_failed: Annotated[bool, make_option("--retry-failed", "Try items that failed again.")] = False,
    grow: Annotated[
        bool, make_option("--grow", "Add items or methods to the run that is there, and compute only these.")
    ] = False,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Explain every item of a data set into Parquet files. Resumes where it stopped; a bad item never stops it."""

    methods = parsing.parse_methods(method) if method else None
    if memory is not None and not memory > 0:
        raise InputError(f"--memory must be > 0, got {memory:g}.", code="E_OPTION")
    destination.check_out_folder(out)
    running.silence_libraries()
    examples = read_examples(data, column, classes, split=split)
    resume_collection()
    run = why.bulk(
        model, examples, methods, out=out, target=target,
        device=device, engine=engine, address=address, workers=workers, batch_size=batch_size,
        memory=None if memory is None else max(1, int(memory * 1e9)), shard=shard, threads=threads, loaders=loaders,
        limit=limit, truncate=truncate, windows=options.choose_windows(windows, overlap), maps=maps, check=check,
        retry_failed=retry_failed, grow=grow,
    )  # fmt: skip
    if as_json:
        output.print_text(json.dumps({**asdict(run), "folder": str(run.folder)}, indent=1))
    else:
        output.print_prose(run)
    output.print_saved(out)
    if run.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
