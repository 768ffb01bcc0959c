"""whyformer demo: a tour of the bundled models."""

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import destination, options, output, running
from whyformer.cli.shell import app


@app.command("demo")
def run_demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to save the HTML page.")] = Path(
        "whyformer-demo.html"
    ),
    as_json: options.JsonErrorsOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Explain the bundled models on a photo, a sentence, two shapes and a prompt, in the terminal and on a page."""
    from whyformer.demo.tour import show_tour

    destination.check_out_file(out, [], {".html": None})
    running.silence_libraries()
    show_tour(out, output.print_rendered)
    output.print_saved(out)
