"""Options that several verbs have, said once."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT = "demo/pets"

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Pictures (paths) or texts, as the model takes. Several: a batch."),
]
ModelName = Annotated[str, typer.Option("-M", "--model", metavar="MODEL", help="A model folder, or a name on the hub.")]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "-t", "--target", metavar="TARGET", help="Class (label or index) or next token; once, or once for each input."
    ),
]
Versus = Annotated[
    str | None, typer.Option("--versus", metavar="TARGET", help="Explain the target rather than this one.")
]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Save; the ending says the format.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
