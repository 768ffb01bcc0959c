"""The options of the commands: what each is called and what its help says.

    @app.command("trace", of="trace_reasoning", method="cp_lrp, attnlrp or lrp_gamma.", by=("Regions ...", "UNIT"))
    def run_trace(*, prompt: str, method: str = "cp_lrp", by: Word, out: File, **settings: Any) -> None: ...

A parameter of a command is an option of its type; without a default it is None or False. OPTIONS describes those of
several commands; the decorator gives one of them other words, or describes one by help, metavar and perhaps names.
`**settings` are the other parameters of the Python function `of`, as options that its docstring describes
(signatures.py).
"""

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from typer.models import ParameterInfo

from whyformer._plain.demo_models import find_demo_models
from whyformer.cli.signatures import Parameter, read_parameters
from whyformer.errors import OutputError

DEFAULT_MODEL = "demo/pets"
PACKAGE_FOLDER = Path(__file__).parents[1]
TEXT_SUFFIXES = (".txt", ".md")
TEXT_AS_INPUT = "To explain these words as a text, pass - and write them to standard input."

Word: TypeAlias = str | None  # an option that can be left out
Words: TypeAlias = list[str] | None  # one that can be repeated
Number: TypeAlias = int | None
File: TypeAlias = Path | None


def complete_method_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the names of all methods, without importing torch."""
    tree = ast.parse((PACKAGE_FOLDER / "methods" / "__init__.py").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and "._" not in str(node.module)]
    yield from sorted(alias.name for node in imports for alias in node.names if alias.name.startswith(incomplete))


def complete_model_names(incomplete: str) -> Iterator[str]:
    """Shell completion: the demo models."""
    folders = sorted(file.parent for file in find_demo_models().glob("*/config.json"))
    yield from (name for folder in folders if (name := f"demo/{folder.name}").startswith(incomplete))


def make_argument(metavar: str, description: str) -> Any:
    return typer.Argument(metavar=metavar, help=description, show_default=False)


def make_option(names: str, description: str, metavar: str | None = None, **more: Any) -> Any:
    """An option with these names, such as "-t --target"."""
    return typer.Option(*names.split(), help=description, metavar=metavar, **more)


def parse_folder(word: str) -> Path:
    """A folder; the path of "" would be the current folder."""
    if not word.strip():
        raise OutputError("-o needs the name of a folder, but it is empty.")
    return Path(word)


INPUTS_HELP = (
    "Image files or texts, depending on the model; also a folder, a glob pattern, a .txt file, or - for one "
    "input per line on standard input. Without it, a bundled sample is used."
)
PAIR_HELP = (
    "The second text of a pair that the model reads together, such as a hypothesis or a context; also a .txt "
    "file. Once for all inputs, or once per input."
)
TARGETS_HELP = (
    "What to explain: a class (label or index), a next token, or e.g. group:cat,dog, token:Paris@mask, "
    "entity:Berlin=LOC, answer:3-7. Once for all inputs, or once per input."
)
PROMPT_HELP = "The text of the prompt, or a .txt or .md file with it; one line break at the end of a file is left out."
MESSAGES_HELP = "The messages of a chat, or a request and its response as the API of OpenAI has them (.json)."
TOKENS_HELP = "Token ids of prompt and answer: prompt_token_ids and token_ids, such as a log of vLLM (.json)."
MODEL_HELP = "A model folder, a name on the hub, or a bundled model (demo/...)."
METHODS_HELP = "Method to use, with optional settings, e.g. 'rollout(start=1)'; or quick or all. Repeatable."
COLUMNS_HELP = "The column for a role: input, pair, label, mask, rationale, name; repeatable."
CLASSES_HELP = "Map a label in the data to a class of the model, e.g. pos=POSITIVE. Repeatable."

MODEL_ARGUMENT = typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=complete_model_names)
OPTIONS: Mapping[str, Any] = {
    "models": make_argument("[MODEL]...", "Names or folders of models."),
    "name": make_argument("NAME", "A name."),
    "inputs": make_argument("INPUT", INPUTS_HELP),
    "prompt": make_argument("PROMPT", PROMPT_HELP),
    "data": make_argument("DATA", "A folder of images, a table (.csv .tsv .jsonl .parquet), ERASER, ..."),
    "a": make_argument("A", "A text or an image file."),
    "b": make_argument("B", "A text or an image file."),
    "folder": make_argument("DIR", "The folder of a bulk run: plan.json and parts/."),
    "pair": make_option("--pair", PAIR_HELP, "TEXT"),
    "model": make_option("-M --model", MODEL_HELP, "MODEL", autocompletion=complete_model_names),
    "method": make_option("-m --method", "See: whyformer methods.", "METHOD", autocompletion=complete_method_names),
    "methods": make_option("-m --method", METHODS_HELP, "METHOD", autocompletion=complete_method_names),
    "targets": make_option("-t --target", TARGETS_HELP, "TARGET"),
    "target": make_option(
        "-t --target", "What to explain: predicted, label, a class, or e.g. group:cat,dog.", "TARGET"
    ),
    "versus": make_option("--versus", "Explain why the target and not this one.", "TARGET"),
    "windows": make_option("--windows", "Explain texts that are too long for the model in overlapping windows."),
    "overlap": make_option(
        "--overlap", "Tokens that windows share; default: a quarter. Implies --windows.", "N", min=0
    ),
    "prompt_file": make_option("--prompt", "A text file that is one prompt, without its last line break.", "FILE"),
    "answer": make_option("--answer", "What a language model answered; explained in one pass.", "TEXT"),
    "messages": make_option("--messages", MESSAGES_HELP, "FILE"),
    "tokens": make_option("--tokens", TOKENS_HELP, "FILE"),
    "max_new_tokens": make_option("-n --max-new-tokens", "Maximum number of tokens to generate.", "N", min=1),
    "engine": make_option("--engine", "Where the workers run: local or ray.", "ENGINE"),
    "device": make_option("--device", "Where the model runs: cpu, cuda, ...", "DEVICE"),
    "limit": make_option("--limit", "Use N examples, drawn at random.", "N"),
    "batch_size": make_option("--batch-size", "Examples that go through the model at once.", "N"),
    "seed": make_option("--seed", "The seed of all random draws.", "N"),
    "split": make_option("--split", "The split of the data: test, val, ...", "SPLIT"),
    "columns": make_option("--column --columns", COLUMNS_HELP, "ROLE=NAME"),
    "classes": make_option("--class --classes", CLASSES_HELP, "LABEL=CLASS"),
    "masks": make_option("--masks", "A folder of masks; each mask has the same file name as its image.", "FOLDER"),
    "mask_values": make_option("--mask-values", "What the values in a mask mean: binary, voc, trimap.", "VALUES"),
    "out": make_option(
        "-o --out", "Save the result; the suffix selects the format, such as .html, .png, .svg or .pdf.", "FILE"
    ),
    "out_folder": make_option(
        "-o --out", "Save rows, table and report there; rerun to resume.", "FOLDER", parser=parse_folder
    ),
    "out_files": make_option("-o --out", "Save as .html, .json, .csv or .txt; repeatable.", "FILE"),
    "as_json": make_option("--json", "Print JSON."),
    "debug": make_option("--debug", "Show the traceback of an error."),
    "open_page": make_option("--open", "Open the saved page in a browser; without -o, a temporary one."),
}


# --- from the signatures ----------------------------------------------------------------------------------------------

# Other words for what OPTIONS has, or help, metavar and perhaps names; or an option of typer.
Description: TypeAlias = str | tuple[str, str] | tuple[str, str | None, str] | ParameterInfo
TYPES = {"bool": bool, "int": int, "int | None": Number, "float": float}


def make_parameter(name: str, kind: Any, option: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter as typer reads it. Without a default, a switch is off and what can be None is not given."""
    if default is inspect.Parameter.empty:
        default = False if kind is bool else None if type(None) in get_args(kind) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def describe_option(name: str, described: Description | None) -> Any:
    """The option that a command describes itself, or in words of its own, or as OPTIONS does."""
    known = copy(OPTIONS.get(name))
    if described is None or isinstance(described, ParameterInfo):
        return described or known
    if isinstance(described, str) and known is not None:
        known.help = described
        return known
    words, metavar, names = (described, None, None) if isinstance(described, str) else (*described, None)[:3]
    return make_option(names or f"--{name.replace('_', '-')}", words, metavar)


def make_verb_parameter(one: Parameter, described: Description | None) -> inspect.Parameter:
    """The option of a parameter: --retry-failed of `retry_failed`; of a sequence such as `tests` --test, repeatable."""
    is_list = one.kind.startswith("Sequence")
    kind = Words if is_list else TYPES.get(one.kind, str if isinstance(one.default, str) else Word)
    flag = (one.name.removesuffix("s") if is_list else one.name).replace("_", "-")
    names = f"--{flag}/--no-{flag}" if kind is bool and one.default else f"--{flag}"
    meaning = (one.meaning[:1].upper() + one.meaning[1:]).replace("`", "")
    metavar = None if kind is bool else "N" if kind in (int, Number) else flag.upper()
    option = describe_option(one.name, described) or make_option(names, meaning, metavar)
    return make_parameter(one.name, kind, option, None if is_list else one.default)


def list_parameters(
    run: Any, own: Mapping[str, Description], of: str | None, without: Collection[str]
) -> dict[str, inspect.Parameter]:
    """The parameters of a command, described; then those of the Python function `of`, but for `without`."""
    listed = {
        one.name: make_parameter(one.name, one.annotation, describe_option(one.name, own.get(one.name)), one.default)
        for one in inspect.signature(run, eval_str=True).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    }
    found = {} if of is None else read_parameters(of)
    known = {*listed, *without}
    return listed | {name: make_verb_parameter(one, own.get(name)) for name, one in found.items() if name not in known}
