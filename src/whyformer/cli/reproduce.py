"""whyformer reproduce: a published table beside the same table measured here."""

from typing import Annotated

import typer

from whyformer.cli import parsing
from whyformer.cli.judge import (
    FAILED_EXIT_CODE,
    BatchOption,
    ClassesOption,
    ColumnOption,
    DataArgument,
    DeviceOption,
    LimitOption,
    MasksOption,
    MaskValuesOption,
    OutFolderOption,
    SplitOption,
    parse_pairs,
)
from whyformer.cli.options import DebugOption
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
    data: DataArgument,
    model: Annotated[
        str, typer.Option("-M", "--model", metavar="MODEL", help="The paper's model if you have it, or any other.")
    ],
    limit: LimitOption = None,
    batch: BatchOption = None,
    split: SplitOption = None,
    column: ColumnOption = None,
    classes: ClassesOption = None,
    masks: MasksOption = None,
    mask_values: MaskValuesOption = "binary",
    device: DeviceOption = None,
    out: OutFolderOption = None,
    debug: DebugOption = False,
) -> None:
    """Print a published table next to what the same protocol gives on your model and data."""
    from whyformer._judge.published import find_paper_table
    from whyformer._judge.published import reproduce as reproduced
    from whyformer._model.loading import open as opened
    from whyformer.data import read

    find_paper_table(name)
    examples = read(
        data,
        split=split,
        columns=parse_pairs(column, "--column"),
        classes={label: parsing.parse_value(word) for label, word in parse_pairs(classes, "--class").items()},
        masks=masks,
        mask_values=mask_values,
    )
    parsing.silence_libraries()
    made = reproduced(name, examples, opened(model, device=device), out=out, batch=batch, limit=limit)
    print(made)
    if made.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
