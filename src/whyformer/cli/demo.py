"""whyformer demo: explain what ships."""

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import parsing
from whyformer.cli.options import DebugOption
from whyformer.cli.shell import app


@app.command()
def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the HTML page goes.")] = Path("whyformer-demo.html"),
    debug: DebugOption = False,
) -> None:
    """Explain what ships: a photograph, a sentence, two shapes and a language model, here and on one HTML page."""
    from whyformer._plain.archive import suffix_of
    from whyformer.demo.tour import show_tour

    suffix_of(out, {".html": None})
    parsing.silence_libraries()
    show_tour(out, print)
