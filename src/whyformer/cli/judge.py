"""whyformer judge: which method to trust on this model and this data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import parsing
from whyformer.cli.options import DEFAULT_MODEL, DebugOption, JsonOption, ModelOption
from whyformer.cli.shell import app
from whyformer.errors import InputError

FAILED_EXIT_CODE = 6  # exit code: finished, but some rows have no number because something failed

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder of pictures, a table (.csv .tsv .jsonl .parquet), ERASER, ...")
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-m", "--method", metavar="METHOD", help="Repeatable, with settings: 'rollout(start=1)'. Also: quick, all."
    ),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, ...")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", help="So many examples, drawn at random.")]
BatchOption = Annotated[int | None, typer.Option("--batch", metavar="N", help="Examples at once.")]
SplitOption = Annotated[str | None, typer.Option("--split", help="Which part of the data: test, val, ...")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="ROLE=NAME", help="Which column holds the input, label, mask, rationale, name."),
]
ClassesOption = Annotated[
    list[str] | None,
    typer.Option("--class", metavar="LABEL=CLASS", help="What the model calls a label of the data; repeatable."),
]
MasksOption = Annotated[Path | None, typer.Option("--masks", metavar="FOLDER", help="Masks, named as the pictures.")]
MaskValuesOption = Annotated[
    str, typer.Option("--mask-values", help="What numbers in a mask mean: binary, voc, trimap.")
]
OutFolderOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Rows, table and report; run again to go on there.")
]


@app.command()
def judge(
    data: DataArgument,
    model: ModelOption = DEFAULT_MODEL,
    method: MethodsOption = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("-k", "--metric", metavar="METRIC", help="Repeatable, with settings: 'aopc(fill=\"pad\")'."),
    ] = None,
    target: Annotated[
        str, typer.Option("-t", "--target", help="The class to explain: predicted, label, or one of the model's.")
    ] = "predicted",
    limit: LimitOption = None,
    batch: BatchOption = None,
    split: SplitOption = None,
    column: ColumnOption = None,
    classes: ClassesOption = None,
    masks: MasksOption = None,
    mask_values: MaskValuesOption = "binary",
    device: DeviceOption = None,
    out: OutFolderOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score methods on your data next to chance, with intervals, and say which to use."""
    from whyformer._judge import judge as judged
    from whyformer._model.loading import open as opened
    from whyformer.data import read
    from whyformer.metrics._registry import METRICS

    methods = parsing.parse_methods(method or ["quick"])
    metrics = [parsing.parse_call(word, METRICS, "metric") for word in metric] if metric else None
    examples = read(
        data,
        split=split,
        columns=parse_pairs(column, "--column"),
        classes={label: parsing.parse_value(name) for label, name in parse_pairs(classes, "--class").items()},
        masks=masks,
        mask_values=mask_values,
        limit=limit,
    )
    parsing.silence_libraries()
    explained = opened(model, device=device)
    aim = target if target in ("predicted", "label") else parsing.parse_target(explained, [target])
    judgement = judged(explained, examples, methods, metrics, out=out, target=aim, batch=batch)
    if as_json:
        told = {"verdict": judgement.verdict, "cautions": judgement.cautions, "lines": judgement.table.records()}
        print(json.dumps(told, indent=1))
    else:
        print(judgement)
        if out is not None:
            print(f"\nRows, table and report are in {out}; open {out / 'report.html'}.")
    if judgement.failed:
        raise typer.Exit(FAILED_EXIT_CODE)


def parse_pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE, each time the option is given."""
    found = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{option} {word!r} is not NAME=VALUE.")
        found[name] = value
    return found
