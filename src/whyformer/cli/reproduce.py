"""whyformer reproduce: a published table next to the same table measured on your model and data."""

from typing import Annotated

import typer

from whyformer.cli import destination, options, output, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.shell import FAILED_EXIT_CODE, app

EXAMPLES = """Examples:

whyformer reproduce chefer-segmentation ImageNet-Segmentation/ -M google/vit-base-patch16-224"""


@app.command("reproduce", epilog=EXAMPLES)
def run_reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="chefer-perturbation, chefer-segmentation, chefer-ablation, eraser-movies or attcat.",
        ),
    ],
    data: options.DataArgument,
    model: Annotated[
        str, typer.Option("-M", "--model", metavar="MODEL", help="The model of the paper if you have it, or any other.")
    ],
    limit: options.LimitOption = None,
    batch: options.BatchOption = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    masks: options.MasksOption = None,
    mask_values: options.MaskValuesOption = "binary",
    device: options.DeviceOption = None,
    out: options.OutFolderOption = None,
    as_json: options.JsonErrorsOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Print a published table next to the results of the same protocol on your model and data."""
    from whyformer._judge.paper_tables import find_paper_table
    from whyformer._judge.published import reproduce

    find_paper_table(name)  # report misspelt names before a large model is opened
    destination.check_out_folder(out)
    examples = read_examples(data, column, classes, split=split, masks=masks, mask_values=mask_values)
    opened = running.open_quietly(model, device)
    reproduction = reproduce(name, examples, opened, out=out, batch=batch, limit=limit)
    output.print_text(reproduction)
    if reproduction.failed:
        raise typer.Exit(FAILED_EXIT_CODE)
