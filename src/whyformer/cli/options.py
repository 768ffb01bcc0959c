"""Arguments and options that several verbs share, such as -M, -t and -o."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from whyformer._plain.demo_models import find_demo_models
from whyformer.errors import OutputError

DEFAULT_MODEL = "demo/pets"
PACKAGE_FOLDER = Path(__file__).parents[1]
TEXT_SUFFIXES = (".txt", ".md")
TEXT_AS_INPUT = "To explain these words as a text, pass - and write them to standard input."
MODEL_HELP = "A model folder, a name on the hub, or a bundled model (demo/...)."

Word: TypeAlias = str | None  # an option that can be left out
Words: TypeAlias = list[str] | None  # one that can be repeated
Number: TypeAlias = int | None


def complete_method_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the names of all methods, without importing torch."""
    tree = ast.parse((PACKAGE_FOLDER / "methods" / "__init__.py").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and "._" not in str(node.module)]
    yield from sorted(alias.name for node in imports for alias in node.names if alias.name.startswith(incomplete))


def complete_model_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the demo models."""
    folders = sorted(file.parent for file in find_demo_models().glob("*/config.json"))
    yield from (name for folder in folders if (name := f"demo/{folder.name}").startswith(incomplete))


def list_examples(*commands: str) -> str:
    """The examples below the help of a verb."""
    return "\n\n".join(["Examples:", *commands])


def make_option(names: str, description: str, metavar: str | None = None, **more: Any) -> Any:
    """An option with these names, such as "-t --target"."""
    return typer.Option(*names.split(), help=description, metavar=metavar, **more)


def make_method_option(description: str, *, show_default: bool = False) -> Any:
    """The option -m, which each verb describes in its own words."""
    complete = complete_method_names
    return make_option("-m --method", description, "METHOD", autocompletion=complete, show_default=show_default)


def make_folder_option(description: str) -> Any:
    """The option -o of verbs that fill a folder."""
    return make_option("-o --out", description, "FOLDER", parser=parse_folder)


def parse_folder(word: str) -> Path:
    """A folder; the path of "" would be the current folder."""
    if not word.strip():
        raise OutputError("-o needs the name of a folder, but it is empty.")
    return Path(word)


# --- explain, compare, inspect, generate ------------------------------------------------------------------------------

INPUTS_HELP = (
    "Image files or texts, depending on the model; also a folder, a glob pattern, a .txt file, or - for one "
    "input per line on standard input. Without it, a bundled sample is used."
)
PAIR_HELP = (
    "The second text of a pair that the model reads together, such as a hypothesis or a context; also a .txt "
    "file. Once for all inputs, or once per input."
)
TARGET_HELP = (
    "What to explain: a class (label or index), a next token, or e.g. group:cat,dog, token:Paris@mask, "
    "entity:Berlin=LOC, answer:3-7. Once for all inputs, or once per input."
)
OUT_HELP = "Save the result; the suffix selects the format, such as .html, .png, .svg or .pdf."
WINDOWS_HELP = "Explain texts that are too long for the model in overlapping windows."
OVERLAP_HELP = "Tokens that windows share; default: a quarter. Implies --windows."

InputsArgument = Annotated[Words, typer.Argument(metavar="INPUT", help=INPUTS_HELP, show_default=False)]
PairOption = Annotated[Words, make_option("--pair", PAIR_HELP, "TEXT")]
ModelOption = Annotated[str, make_option("-M --model", MODEL_HELP, "MODEL", autocompletion=complete_model_names)]
TargetOption = Annotated[Words, make_option("-t --target", TARGET_HELP, "TARGET")]
VersusOption = Annotated[Word, make_option("--versus", "Explain why the target and not this one.", "TARGET")]
OutOption = Annotated[Path | None, make_option("-o --out", OUT_HELP, "FILE")]
WindowsOption = Annotated[bool, make_option("--windows", WINDOWS_HELP)]
OverlapOption = Annotated[Number, make_option("--overlap", OVERLAP_HELP, "N", min=0)]
JsonOption = Annotated[bool, make_option("--json", "Print JSON.")]
JsonErrorsOption = Annotated[bool, make_option("--json", "Print an error as JSON.")]
DebugOption = Annotated[bool, make_option("--debug", "Show the traceback of an error.")]


def choose_windows(windows: bool, overlap: int | None) -> bool | int:
    """The argument windows= of explain() and bulk()."""
    return windows if overlap is None else overlap


# --- judge, audit, bulk, reproduce ------------------------------------------------------------------------------------

DATA_HELP = "A folder of images, a table (.csv .tsv .jsonl .parquet), ERASER, ..."
METHODS_HELP = "Method to use, with optional settings, e.g. 'rollout(start=1)'; or quick or all. Repeatable."
ONE_TARGET_HELP = "What to explain: predicted, label, a class, or e.g. group:cat,dog."
COLUMN_HELP = "The column for a role: input, pair, label, mask, rationale, name; repeatable."
CLASSES_HELP = "Map a label in the data to a class of the model, e.g. pos=POSITIVE. Repeatable."
MASKS_HELP = "A folder of masks; each mask has the same file name as its image."

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
MethodsOption = Annotated[Words, make_option("-m --method", METHODS_HELP, "METHOD")]
OneTargetOption = Annotated[Word, make_option("-t --target", ONE_TARGET_HELP)]
DeviceOption = Annotated[Word, make_option("--device", "Where the model runs: cpu, cuda, ...")]
LimitOption = Annotated[Number, make_option("--limit", "Use N examples, drawn at random.", "N")]
BatchSizeOption = Annotated[Number, make_option("--batch-size", "Examples that go through the model at once.", "N")]
SeedOption = Annotated[int, make_option("--seed", "The seed of all random draws.")]
SplitOption = Annotated[Word, make_option("--split", "The split of the data: test, val, ...")]
ColumnOption = Annotated[Words, make_option("--column --columns", COLUMN_HELP, "ROLE=NAME")]
ClassesOption = Annotated[Words, make_option("--class --classes", CLASSES_HELP, "LABEL=CLASS")]
MasksOption = Annotated[Path | None, make_option("--masks", MASKS_HELP, "FOLDER")]
MaskValuesOption = Annotated[str, make_option("--mask-values", "What the values in a mask mean: binary, voc, trimap.")]
OutFolderOption = Annotated[Path | None, make_folder_option("Save rows, table and report there; rerun to resume.")]
