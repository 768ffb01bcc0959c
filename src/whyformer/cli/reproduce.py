"""whyformer reproduce: what a paper printed, next to the same measured here."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli import destination, options, output, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import FAILED_EXIT_CODE, app
from whyformer.cli.waiting import wait_asleep
from whyformer.errors import MethodError

if TYPE_CHECKING:
    from whyformer._model import Model

EXAMPLES = list_examples(
    "whyformer reproduce",
    "whyformer reproduce chefer",
    "whyformer reproduce sawaki-murata cat.jpg -M facebook/dino-vits16 -o figures",
    "whyformer reproduce chefer imagenet/ -M google/vit-base-patch16-224 --device cuda -o tables",
)


NAME_HELP = "A document or one of its tables. Without it, all names are listed."
DATA_HELP = "A folder of images, a table, ERASER, ... Without it, bundled or generated data."
PAPERS = "whyformer_papers"
BESIDE = Path(__file__).parents[3] / "papers" / "src"  # in a checkout
INSTALL = "The papers are a package of their own: pip install 'whyformer[papers]', in a clone pip install ./papers"
MODEL_HELP = "The model of the paper if you have it, or any other."


@app.command("reproduce", epilog=EXAMPLES)
def run_reproduce(
    name: Annotated[Word, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)] = None,
    data: Annotated[Word, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)] = None,
    model: Annotated[Word, make_option("-M --model", MODEL_HELP, "MODEL")] = None,
    published: Annotated[
        bool, make_option("--published", "Print the published numbers and their sources; run nothing.")
    ] = False,
    full: Annotated[
        bool, make_option("--full", "The larger run: ten times the generated examples, hours instead of minutes.")
    ] = False,
    limit: options.LimitOption = None,
    batch_size: options.BatchSizeOption = None,
    split: options.SplitOption = None,
    column: options.ColumnOption = None,
    classes: options.ClassesOption = None,
    masks: options.MasksOption = None,
    mask_values: options.MaskValuesOption = "binary",
    device: options.DeviceOption = None,
    out: options.OutFolderOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Print what a paper published next to the results of the same protocol measured here."""
    wait_asleep()  # before torch is imported
    find_papers()
    from whyformer_papers import Request, find_document, run_document
    from whyformer_papers.documents import DOCUMENTS, list_documents
    from whyformer_papers.imagenet_folder import split_imagenet_folder

    if name is None:
        fields = [{"name": one.name, "title": one.title, "runs": one.runs} for one in DOCUMENTS.values()]
        output.print_text(json.dumps(fields, indent=1)) if as_json else output.print_rendered(list_documents())
        return
    document = find_document(name)  # report misspelt names before a large model is opened
    if published and as_json:
        tables = [{"title": table.title, "rows": table.records()} for table in document.published]
        output.print_text(json.dumps({"remark": document.remark, "tables": tables}, indent=1))
        return
    if published:
        for table in document.published:
            output.print_rendered(f"{table}\n")
        if document.remark:
            output.print_prose(document.remark)
        return
    destination.check_out_folder(out)
    examples = segmented = None
    if data is not None:
        both = split_imagenet_folder(Path(data)) if name == "chefer" else None
        source = [data] if data.lower().endswith(IMAGE_SUFFIXES) else str(both[0]) if both else data
        examples = read_examples(source, column, classes, split=split, masks=masks, mask_values=mask_values)
        segmented = None if both is None else read_examples(str(both[1]), None, None)
    opened = None if model is None else open_model_or_reader(model, device)
    made = run_document(document, Request(examples, opened, out, batch_size, limit, full, segmented, device))
    output.print_text(running.write_json(made)) if as_json else output.print_rendered(str(made))
    for note in opened.notes if opened is not None else ():
        (output.print_to_stderr if as_json else output.print_text)(note)
    if out is not None:
        output.print_saved(out, out / "report.html")
    if made.failed:
        raise typer.Exit(FAILED_EXIT_CODE)


def find_papers() -> None:
    """The package with the documents is installed, or in a checkout beside the first; else say how to get it."""
    if find_spec(PAPERS) is None and (BESIDE / PAPERS).is_dir():
        sys.path.append(str(BESIDE))
    if find_spec(PAPERS) is None:
        raise MethodError(INSTALL, code="E_USAGE")


def open_model_or_reader(name: str, device: str | None) -> "Model":
    """A model as every verb opens it, or a reader of Jain & Wallace's tasks, which only this one runs."""
    from whyformer_papers.jain_wallace_models import is_jain_wallace_folder, load_jain_wallace

    return load_jain_wallace(name, device) if is_jain_wallace_folder(name) else running.open_quietly(name, device)
