"""whyformer demo: a tour of the bundled models."""

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import running
from whyformer.cli.options import DebugOption
from whyformer.cli.shell import app


@app.command("demo")
def run_demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to save the HTML page.")] = Path(
        "whyformer-demo.html"
    ),
    debug: DebugOption = False,
) -> None:
    """Explain the bundled models on a photo, a sentence, two shapes and a prompt, in the terminal and on a page."""
    from whyformer._plain.archive import suffix_of
    from whyformer.demo.tour import show_tour

    suffix_of(out, {".html": None})
    running.silence_libraries()
    show_tour(out, print)
