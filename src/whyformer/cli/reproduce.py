"""whyformer reproduce: what a paper printed, next to the same measured here."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from whyformer._plain.paths import IMAGE_SUFFIXES
from whyformer.cli import destination, output, running
from whyformer.cli.gathering import read_examples
from whyformer.cli.options import File, Number, Word, Words
from whyformer.cli.shared_options import AS_JSON, DEVICE
from whyformer.cli.shell import app
from whyformer.cli.waiting import wait_asleep
from whyformer.errors import MethodError

if TYPE_CHECKING:
    from whyformer._model import Model

EXAMPLES = (
    "whyformer reproduce",
    "whyformer reproduce chefer",
    "whyformer reproduce sawaki-murata cat.jpg -M facebook/dino-vits16 -o figures",
    "whyformer reproduce chefer imagenet/ -M google/vit-base-patch16-224 --device cuda -o tables",
)


PAPERS = "whyformer_papers"
BESIDE = Path(__file__).parents[3] / "papers" / "src"  # in a checkout
INSTALL = "The papers are a package of their own: pip install 'whyformer[papers]', in a clone pip install ./papers"


@app.command(
    "reproduce",
    examples=EXAMPLES,
    name="A document or one of its tables. Without it, all names are listed.",
    data="A folder of images, a table, ERASER, ... Without it, bundled or generated data.",
    model="The model of the paper if you have it, or any other.",
    published="Print the published numbers and their sources; run nothing.",
    full="The larger run: ten times the generated examples, hours instead of minutes.",
)
def run_reproduce(
    *, name: Word, data: Word, model: Word, published: bool, full: bool, limit: Number, batch_size: Number,
    split: Word, columns: Words, classes: Words, masks: File, mask_values: str = "binary", out_folder: File,
) -> None:  # fmt: skip
    """Print what a paper published next to the results of the same protocol measured here."""
    wait_asleep()  # before torch is imported
    find_papers()
    from whyformer_papers import Request, find_document, run_document
    from whyformer_papers.documents import DOCUMENTS, list_documents
    from whyformer_papers.imagenet_folder import split_imagenet_folder

    if name is None:
        fields = [{"name": one.name, "title": one.title, "runs": one.runs} for one in DOCUMENTS.values()]
        output.print_text(json.dumps(fields, indent=1)) if AS_JSON.get() else output.print_rendered(list_documents())
        return
    document = find_document(name)  # report misspelt names before a large model is opened
    if published and AS_JSON.get():
        tables = [{"title": table.title, "rows": table.records()} for table in document.published]
        output.print_text(json.dumps({"remark": document.remark, "tables": tables}, indent=1))
        return
    if published:
        for table in document.published:
            output.print_rendered(f"{table}\n")
        if document.remark:
            output.print_prose(document.remark)
        return
    destination.check_out_folder(out_folder)
    examples = segmented = None
    if data is not None:
        both = split_imagenet_folder(Path(data)) if name == "chefer" else None
        source = [data] if data.lower().endswith(IMAGE_SUFFIXES) else str(both[0]) if both else data
        examples = read_examples(source, columns, classes, split=split, masks=masks, mask_values=mask_values)
        segmented = None if both is None else read_examples(str(both[1]), None, None)
    opened = None if model is None else open_model_or_reader(model, DEVICE.get())
    made = run_document(
        document, Request(examples, opened, out_folder, batch_size, limit, full, segmented, DEVICE.get())
    )
    output.print_text(running.encode_result(made)) if AS_JSON.get() else output.print_rendered(str(made))
    for note in opened.notes if opened is not None else ():
        (output.print_to_stderr if AS_JSON.get() else output.print_text)(note)
    running.end_run(out_folder, "report.html", failed=made.failed)


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
