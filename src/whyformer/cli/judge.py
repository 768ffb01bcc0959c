"""whyformer judge: which method to trust on this model and this data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.options import DEFAULT, AsJson, Debug, ModelName
from whyformer.cli.shell import app
from whyformer.errors import InputError

FAILED = 6  # exit code: finished, but some rows have no number because something failed

DataPath = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder of pictures, a table (.csv .tsv .jsonl .parquet), ERASER, ...")
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "-m", "--method", metavar="METHOD", help="Repeatable, with settings: 'rollout(start=1)'. Also: quick, all."
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, ...")]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="So many examples, drawn at random.")]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Examples at once.")]
Split = Annotated[str | None, typer.Option("--split", help="Which part of the data: test, val, ...")]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="ROLE=NAME", help="Which column holds the input, label, mask, rationale, name."),
]
Classes = Annotated[
    list[str] | None,
    typer.Option("--class", metavar="LABEL=CLASS", help="What the model calls a label of the data; repeatable."),
]
Masks = Annotated[Path | None, typer.Option("--masks", metavar="FOLDER", help="Masks, named as the pictures.")]
MaskValues = Annotated[str, typer.Option("--mask-values", help="What numbers in a mask mean: binary, voc, trimap.")]
OutFolder = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Rows, table and report; run again to go on there.")
]


@app.command()
def judge(
    data: DataPath,
    model: ModelName = DEFAULT,
    method: Methods = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("-k", "--metric", metavar="METRIC", help="Repeatable, with settings: 'aopc(fill=\"pad\")'."),
    ] = None,
    target: Annotated[
        str, typer.Option("-t", "--target", help="The class to explain: predicted, label, or one of the model's.")
    ] = "predicted",
    limit: Limit = None,
    batch: Batch = None,
    split: Split = None,
    column: Column = None,
    classes: Classes = None,
    masks: Masks = None,
    mask_values: MaskValues = "binary",
    device: Device = None,
    out: OutFolder = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score methods on your data next to chance, with intervals, and say which to use."""
    from whyformer.data import read
    from whyformer.judge import judge as judged
    from whyformer.loading import open as opened
    from whyformer.metric import METRICS

    methods = typed.methods_called(method or ["quick"])
    metrics = [typed.called(word, METRICS, "metric") for word in metric] if metric else None
    examples = read(
        data,
        split=split,
        columns=pairs(column, "--column"),
        classes={label: typed.value_of(name) for label, name in pairs(classes, "--class").items()},
        masks=masks,
        mask_values=mask_values,
        limit=limit,
    )
    typed.quietly()
    explained = opened(model, device=device)
    aim = target if target in ("predicted", "label") else typed.target_for(explained, [target])
    judgement = judged(explained, examples, methods, metrics, out=out, target=aim, batch=batch)
    if as_json:
        told = {"verdict": judgement.verdict, "cautions": judgement.cautions, "lines": judgement.table.records()}
        print(json.dumps(told, indent=1))
    else:
        print(judgement)
        if out is not None:
            print(f"\nRows, table and report are in {out}; open {out / 'report.html'}.")
    if judgement.failed:
        raise typer.Exit(FAILED)


def pairs(words: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE, each time the option is given."""
    found = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{option} {word!r} is not NAME=VALUE.")
        found[name] = value
    return found
