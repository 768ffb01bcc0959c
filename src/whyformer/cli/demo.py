"""whyformer demo: explain what ships."""

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.options import Debug
from whyformer.cli.shell import app


@app.command()
def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the HTML page goes.")] = Path("whyformer-demo.html"),
    debug: Debug = False,
) -> None:
    """Explain what ships: a photograph, a sentence, two shapes and a language model, here and on one HTML page."""
    from whyformer.archive import suffix_of
    from whyformer.demo.tour import tour

    suffix_of(out, {".html": None})
    typed.quietly()
    tour(out, print)
