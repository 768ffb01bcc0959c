"""Arguments and options that several verbs share, such as -M, -t and -o."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.errors import OutputError

DEFAULT_MODEL = "demo/pets"
PACKAGE_FOLDER = Path(__file__).parents[1]


def complete_method_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the names of all methods, without importing torch."""
    tree = ast.parse((PACKAGE_FOLDER / "methods" / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from (name for name in ast.literal_eval(node.value) if name.startswith(incomplete))


def complete_model_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the bundled demo models."""
    folders = sorted(file.parent for file in (PACKAGE_FOLDER / "demo" / "models").glob("*/config.json"))
    yield from (name for folder in folders if (name := f"demo/{folder.name}").startswith(incomplete))


# --- explain, compare, inspect, generate ------------------------------------------------------------------------------


def make_method_option(description: str, *, show_default: bool = False) -> Any:
    """The option -m, which each verb describes in its own words."""
    return typer.Option(
        "-m",
        "--method",
        metavar="METHOD",
        help=description,
        autocompletion=complete_method_names,
        show_default=show_default,
    )


InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT",
        help="Image files or texts, depending on the model; also a folder, a glob pattern, a .txt file, or - for one "
        "input per line on standard input. Without it, a bundled sample is used.",
        show_default=False,
    ),
]
PairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pair",
        metavar="TEXT",
        help="The second text of a pair that the model reads together, such as a hypothesis or a context; also a .txt "
        "file. Once for all inputs, or once per input.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "-M",
        "--model",
        metavar="MODEL",
        help="A model folder, a name on the hub, or a bundled model (demo/...).",
        autocompletion=complete_model_names,
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="What to explain: a class (label or index), a next token, or e.g. group:cat,dog, token:Paris@mask, "
        "entity:Berlin=LOC, answer:3-7. Once for all inputs, or once per input.",
    ),
]
VersusOption = Annotated[
    str | None,
    typer.Option("--versus", metavar="TARGET", help="Explain why the target and not this one."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="FILE",
        help="Save the result; the suffix selects the format, such as .html, .png, .svg or .pdf.",
    ),
]
WindowsOption = Annotated[
    bool, typer.Option("--windows", help="Explain texts that are too long for the model in overlapping windows.")
]
OverlapOption = Annotated[
    int | None,
    typer.Option(
        "--overlap", metavar="N", min=0, help="Tokens that windows share; default: a quarter. Implies --windows."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonErrorsOption = Annotated[bool, typer.Option("--json", help="Print an error as JSON.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def choose_windows(windows: bool, overlap: int | None) -> bool | int:
    """The argument windows= of explain() and bulk()."""
    return windows if overlap is None else overlap


# --- judge, audit, reproduce ------------------------------------------------------------------------------------------

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="A folder of images, a table (.csv .tsv .jsonl .parquet), ERASER, ...")
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--method",
        metavar="METHOD",
        help="Method to use, with optional settings, e.g. 'rollout(start=1)'; or quick or all. Repeatable.",
    ),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Where the model runs: cpu, cuda, ...")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", help="Use N examples, drawn at random.")]
BatchOption = Annotated[int | None, typer.Option("--batch", metavar="N", help="The batch size.")]
SplitOption = Annotated[str | None, typer.Option("--split", help="The split of the data: test, val, ...")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        "--columns",
        metavar="ROLE=NAME",
        help="The column for a role: input, pair, label, mask, rationale, name; repeatable.",
    ),
]
ClassesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        "--classes",
        metavar="LABEL=CLASS",
        help="Map a label in the data to a class of the model, e.g. pos=POSITIVE. Repeatable.",
    ),
]
MasksOption = Annotated[
    Path | None,
    typer.Option("--masks", metavar="FOLDER", help="A folder of masks; each mask has the same file name as its image."),
]
MaskValuesOption = Annotated[
    str, typer.Option("--mask-values", help="What the values in a mask mean: binary, voc, trimap.")
]


def make_folder_option(description: str) -> Any:
    """The option -o of verbs that fill a folder."""
    return typer.Option("-o", "--out", metavar="FOLDER", help=description, parser=parse_folder)


def parse_folder(word: str) -> Path:
    """A folder; the path of "" would be the current folder."""
    if not word.strip():
        raise OutputError("-o needs the name of a folder, but it is empty.")
    return Path(word)


OutFolderOption = Annotated[Path | None, make_folder_option("Save rows, table and report there; rerun to resume.")]
