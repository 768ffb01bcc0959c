"""What the verbs do around the library call: open a model, run in batches, print and save the result."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from whyformer._plain.progress import Wait, show_activity, show_progress
from whyformer.cli import output
from whyformer.cli.collection import resume_collection
from whyformer.cli.parsing import Targets
from whyformer.cli.shared_options import AS_JSON, DEVICE, OPENS
from whyformer.errors import WhyformerError
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from whyformer._model import Model
    from whyformer.cli.gathering import CliInputs
    from whyformer.results.result import Result

BATCH = 16  # inputs explained at once
FAILED_EXIT_CODE = 6  # finished, but some rows have no number because something failed


def silence_libraries() -> None:
    """Turn off the progress bars and advice of transformers and the hub."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def open_quietly(name: str, device: str | None = None) -> "Model":
    """Open a model without output from other libraries."""
    from whyformer._model.loading import open as open_model

    silence_libraries()
    with show_activity(Wait(f"opening {make_visible(name)}")):
        model = open_model(name, device=device or DEVICE.get())
    resume_collection()
    return model


def iterate_batches(inputs: "CliInputs", targets: Targets) -> "Iterator[tuple[CliInputs, Targets]]":
    """The inputs in batches, each with its target= and versus=; shows progress on stderr."""
    if not isinstance(inputs, list) or len(inputs) <= BATCH:
        yield inputs, targets
        return
    from whyformer._engine import expand_per_example

    target = expand_per_example(targets["target"], len(inputs), "target")
    versus = expand_per_example(targets["versus"], len(inputs), "versus")
    with show_progress(len(inputs), "explaining") as progress:
        for start in range(0, len(inputs), BATCH):
            batch = slice(start, start + BATCH)
            yield inputs[batch], Targets(target=target[batch], versus=versus[batch])
            progress.advance(len(inputs[batch]))


def show_result(result: "Result", *out: Path | None) -> None:
    """Print a result, with --json as JSON, then save it to `out` and, with --open, open it."""
    if AS_JSON.get():
        output.print_text(encode_result(result))
    else:
        output.print_rendered(str(result))
    files = [file for file in out if file is not None]
    if not files and OPENS.get() and ".html" in result.formats:
        files = [Path(tempfile.mkdtemp(prefix="whyformer-")) / "page.html"]
    for file in files:
        result.save(file)
    output.print_saved(*files)


def end_run(folder: Path | None, *pages: str, failed: int = 0) -> None:
    """Name the folder that a run has filled, and its pages; the exit status says whether all rows have numbers."""
    if folder is not None:
        output.print_saved(folder, *(folder / page for page in pages))
    if failed:
        raise typer.Exit(FAILED_EXIT_CODE)


def open_listing(listing: Mapping[str, object]) -> None:
    """Open a page with these methods or metrics, if --open was given."""
    if OPENS.get():
        from whyformer.show.html import Html
        from whyformer.show.report import make_page

        file = Path(tempfile.mkdtemp(prefix="whyformer-")) / "page.html"
        title = repr(listing).partition(":")[0].lstrip("<")  # 43 methods
        file.write_text(make_page(title, [Html(listing._repr_html_())]), "utf-8")  # type: ignore[attr-defined]
        output.print_saved(file)


def encode_result(result: "Result") -> str:
    """As its .json file, or the rows of its table, or its text."""
    if ".json" in result.formats:
        return result.formats[".json"](result).decode("ascii")
    try:
        fields: object = result.records()
    except WhyformerError:
        fields = {"text": result.formats[".txt"](result).decode("utf-8")}
    return json.dumps(fields, indent=1, default=str)
