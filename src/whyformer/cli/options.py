"""Options that several verbs have, said once."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "demo/pets"
PACKAGE_FOLDER = Path(__file__).parents[1]


def complete_method_names(incomplete: str) -> Iterator[str]:
    """For completion: the names of all methods, without waiting for torch."""
    tree = ast.parse((PACKAGE_FOLDER / "methods" / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (name for name in ast.literal_eval(node.value) if name.startswith(incomplete))


def complete_model_names(incomplete: str) -> Iterator[str]:
    """For completion: the models that ship."""
    shipped = (
        f"demo/{folder.name}" for folder in sorted((PACKAGE_FOLDER / "demo" / "models").iterdir()) if folder.is_dir()
    )
    yield from (name for name in shipped if name.startswith(incomplete))


InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="Pictures (paths) or texts, as the model takes; a folder, a pattern, a .txt file; - reads one a line from "
        "standard input. Nothing: the sample that ships.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "-M",
        "--model",
        metavar="MODEL",
        help="A model folder, or a name on the hub.",
        autocompletion=complete_model_names,
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "-t", "--target", metavar="TARGET", help="Class (label or index) or next token; once, or once for each input."
    ),
]
VersusOption = Annotated[
    str | None, typer.Option("--versus", metavar="TARGET", help="Explain the target rather than this one.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="FILE",
        help="Save; the ending says the format: .html, .png, .svg, .pdf, .csv, ...",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
