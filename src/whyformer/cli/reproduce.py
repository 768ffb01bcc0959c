"""whyformer reproduce: a published table beside the same table measured here."""

from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.judge import (
    FAILED,
    Batch,
    Classes,
    Column,
    DataPath,
    Device,
    Limit,
    Masks,
    MaskValues,
    OutFolder,
    Split,
    pairs,
)
from whyformer.cli.options import Debug
from whyformer.cli.shell import app


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="chefer-perturbation, chefer-segmentation, chefer-ablation, eraser-movies or attcat.",
        ),
    ],
    data: DataPath,
    model: Annotated[
        str, typer.Option("-M", "--model", metavar="MODEL", help="The paper's model if you have it, or any other.")
    ],
    limit: Limit = None,
    batch: Batch = None,
    split: Split = None,
    column: Column = None,
    classes: Classes = None,
    masks: Masks = None,
    mask_values: MaskValues = "binary",
    device: Device = None,
    out: OutFolder = None,
    debug: Debug = False,
) -> None:
    """Print a published table next to what the same protocol gives on your model and data."""
    from whyformer.data import read
    from whyformer.loading import open as opened
    from whyformer.reproduce import find_table
    from whyformer.reproduce import reproduce as reproduced

    find_table(name)
    examples = read(
        data,
        split=split,
        columns=pairs(column, "--column"),
        classes={label: typed.value_of(word) for label, word in pairs(classes, "--class").items()},
        masks=masks,
        mask_values=mask_values,
    )
    typed.quietly()
    made = reproduced(name, examples, opened(model, device=device), out=out, batch=batch, limit=limit)
    print(made)
    if made.failed:
        raise typer.Exit(FAILED)
