"""whyformer bulk: explain a whole data set, and resume where it stopped."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import destination, options, output, parsing, running
from whyformer.cli.collection import resume_collection
from whyformer.cli.gathering import read_examples
from whyformer.cli.shell import FAILED_EXIT_CODE, app
from whyformer.errors import InputError

DATA_HELP = (
    "A folder of images, a table (.csv .tsv .jsonl .parquet), webdataset tars, a glob pattern, or - for paths or texts "
    "on standard input."
)
OUT_HELP = "The folder for the rows; repeat the command to resume."

EXAMPLES = """Examples:

whyformer bulk photos/ -M google/vit-base-patch16-224 -m gamma_attribution -o runs/photos

whyformer bulk reviews.csv -M demo/sentiment -m libragrad -m rollout -o runs/reviews

whyformer bulk 's3-mirror/train-*.tar' -M my/vit --engine ray --address auto --device cuda -o runs/train"""


@app.command("bulk", epilog=EXAMPLES)
def run_bulk(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)],
    out: Annotated[Path, options.make_folder_option(OUT_HELP)],
    model: options.ModelOption = options.DEFAULT_MODEL,
    method: Annotated[
        list[str] | None,
        options.make_method_option("Method, with optional settings, e.g. 'rollout(start=1)'. Repeatable."),
    ] = None,
    target: Annotated[
        str, typer.Option("-t", "--target", help="What to explain: predicted, label, a class, or e.g. group:cat,dog.")
    ] = "predicted",
    device: options.DeviceOption = None,
    engine: Annotated[str, typer.Option("--engine", help="Where the workers run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option("--address", help="The Ray cluster to join; without it Ray runs on this machine only.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Worker processes; default: one per GPU or core.")
    ] = None,
    batch: options.BatchOption = None,
    memory: Annotated[
        float | None,
        typer.Option("--memory", metavar="GB", help="Choose the batch size so that a worker needs at most this much."),
    ] = None,
    shard: Annotated[int | None, typer.Option("--shard", metavar="N", help="Items per file.")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads of each worker on the processor; default: 1.")
    ] = None,
    loaders: Annotated[
        int | None,
        typer.Option(
            "--loaders", metavar="N", help="Threads of each worker that read ahead; next to a GPU with a process each."
        ),
    ] = None,
    limit: options.LimitOption = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long for the model.")] = False,
    windows: options.WindowsOption = False,
    overlap: options.OverlapOption = None,
    maps: Annotated[bool, typer.Option("--maps", help="Also store each map as a PNG.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try items that failed again.")] = False,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Explain every item of a data set into Parquet files. Resumes where it stopped; a bad item never stops it."""
    from whyformer._bulk.run import bulk

    methods = parsing.parse_methods(method) if method else None
    if memory is not None and not memory > 0:
        raise InputError(f"--memory must be > 0, got {memory:g}.", code="E_OPTION")
    destination.check_out_folder(out)
    running.silence_libraries()
    examples = read_examples(data, column, classes, split=split)
    resume_collection()
    run = bulk(
        model, examples, methods, out=out, target=target,
        device=device, engine=engine, address=address, workers=workers, batch=batch,
        memory=None if memory is None else max(1, int(memory * 1e9)), shard=shard, threads=threads, loaders=loaders,
        limit=limit, truncate=truncate, windows=options.choose_windows(windows, overlap), maps=maps,
        retry_failed=retry_failed,
    )  # fmt: skip
    if as_json:
        output.print_text(json.dumps({**asdict(run), "folder": str(run.folder)}, indent=1))
    else:
        output.print_prose(run)
    output.print_saved(out)
    if run.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
