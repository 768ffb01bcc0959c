"""The command line: the same verbs as in Python, in the same order.

    whyformer explain cat.png -M google/vit-base-patch16-224 -t tabby -o map.png
    whyformer compare "a gorgeous film" -M my/folder -m rollout -m attcat
    whyformer methods

What is heavy to import (torch, transformers, the rest of this package) is imported inside the commands, so that --help
is quick. An error is one line on stderr: `error: ...`; the exit code says whose it is (2 usage, 3 input, 4 model,
5 numbers or memory, 130 interrupted).
"""

import ast
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from whyformer.errors import InputError, MethodError, WhyformerError
from whyformer.show.visible import visible

if TYPE_CHECKING:
    from whyformer.model import Model

DEFAULT = "demo/pets"


class Verbs(TyperGroup):
    """The commands, with every error told in one line."""

    def main(self, args: Any = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot show one character still shows the rest
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(arguments, standalone_mode=False, **more)
            sys.stdout.flush()
            if code == 130:  # typer has caught the interrupt
                raise KeyboardInterrupt
        except BrokenPipeError:  # `whyformer methods | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
            code = 1
        except BaseException as error:
            code = told(error, debug="--debug" in arguments)
        sys.exit(code if isinstance(code, int) else 0)


def told(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong in one line, and the exit code for it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if debug:
        traceback.print_exception(error)
    message, code = described(error)
    print(f"error: {visible(' '.join(message.split()))}", file=sys.stderr)
    return code


def described(error: BaseException) -> tuple[str, int]:
    match error:
        case WhyformerError():
            return str(error), error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case MemoryError():
            return "out of memory", 5
    if hasattr(error, "format_message"):  # a wrong option or argument
        return f"{error.format_message().rstrip('.')}. See whyformer --help.", 2
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return "out of memory on the device; explain fewer inputs at once", 5
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)", 1


app = typer.Typer(
    cls=Verbs,
    help="Why did the transformer say that?",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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


def print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"whyformer {version('whyformer')}")
        except PackageNotFoundError:
            print("whyformer (not installed)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def whyformer(
    context: typer.Context,
    version_wanted: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def explain(
    inputs: Inputs,
    model: ModelName = DEFAULT,
    method: Annotated[
        str, typer.Option("-m", "--method", metavar="METHOD", help="See: whyformer methods.")
    ] = "transformer_attribution",
    target: Target = None,
    versus: Versus = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("-s", "--setting", metavar="NAME=VALUE", help="A setting of the method; repeatable."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Which patches or words count for the answer."""
    from whyformer import archive
    from whyformer.explanation import FORMATS, choose
    from whyformer.explanation import explain as explained

    settings = parsed_settings(setting or [])
    choose(method, settings)  # refuse what is misspelt before a large model is opened
    check_out(out, inputs, FORMATS)
    opened = quietly_opened(model)
    aims = {
        "target": target_for(opened, target or []),
        "versus": target_for(opened, [] if versus is None else [versus]),
    }
    explanation = explained(opened, inputs_for(opened, inputs), method, **aims, **settings)
    print(archive.text("explanation", vars(explanation)) if as_json else str(explanation))
    if out is not None:
        explanation.save(out)


@app.command()
def compare(
    inputs: Inputs,
    model: ModelName = DEFAULT,
    method: Annotated[
        list[str] | None, typer.Option("-m", "--method", metavar="METHOD", help="Repeatable; all if left out.")
    ] = None,
    target: Target = None,
    versus: Versus = None,
    out: Out = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Several methods side by side, from one run of the model."""
    from whyformer.comparison import FORMATS, labelled, to_json
    from whyformer.comparison import compare as compared

    labelled(method or [])
    check_out(out, inputs, FORMATS)
    opened = quietly_opened(model)
    aims = {
        "target": target_for(opened, target or []),
        "versus": target_for(opened, [] if versus is None else [versus]),
    }
    comparison = compared(opened, inputs_for(opened, inputs), method or "all", **aims)
    print(to_json(comparison).decode("ascii") if as_json else str(comparison))
    if out is not None:
        comparison.save(out)


@app.command()
def methods(as_json: AsJson = False, debug: Debug = False) -> None:
    """All methods: what the scores mean, what they need and cost."""
    import whyformer.methods  # noqa: F401 (fills METHODS)
    from whyformer.method import METHODS

    rows = [
        {
            "name": method.name,
            "summary": method.summary,
            "class_specific": method.class_specific,
            "signed": method.signed,
            "cost": method.cost,
            "needs": list(method.needs),
            "settings": {name: default for name, default in method.settings.items()},
            "recipe": method.recipe,
            "paper": method.paper,
        }
        for method in sorted(METHODS.values(), key=lambda method: method.name)
    ]
    if as_json:
        print(json.dumps(rows, indent=2, default=repr))
    else:
        print_table(rows)


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("what a score says")
    for row in rows:
        facts = [
            "for one class" if row["class_specific"] else "the same for every class",
            "signed" if row["signed"] else "not signed",
            row["cost"],
            f"needs {', '.join(row['needs'])}",
        ]
        table.add_row(Text(row["name"]), Text(row["summary"]).append(f"\n{'; '.join(facts)}", style="dim"))
    Console().print(table)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the HTML page goes.")] = Path("whyformer-demo.html"),
    debug: Debug = False,
) -> None:
    """Explain what ships: a photograph, a sentence, two shapes and a language model, here and on one HTML page."""
    from whyformer.archive import suffix_of
    from whyformer.demo.tour import tour

    suffix_of(out, {".html": None})
    quietly()
    tour(out, print)


# --- from words to values ---------------------------------------------------------------------------------------------


def quietly() -> None:
    """Without the progress bars and advice of the libraries that load models."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def quietly_opened(name: str) -> "Model":
    from whyformer.loading import open as opened

    quietly()
    return opened(name)


def inputs_for(model: "Model", inputs: list[str]) -> Any:
    """What was typed, as the model takes it. A model without a processor takes tensors from a safetensors file."""
    if model.kind != "tensors":
        return inputs
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if len(inputs) != 1 or Path(inputs[0]).suffix != ".safetensors":
        raise InputError(
            f"{model.name} has no processor or tokenizer, so it takes tensors: give one .safetensors file that "
            "holds its inputs by name (input_ids, pixel_values), or use a model with a processor."
        )
    try:
        return load_file(inputs[0])
    except OSError as error:
        raise InputError(f"Cannot read {inputs[0]}: {error.strerror or error}.") from None
    except SafetensorError:
        raise InputError(f"{inputs[0]} is no safetensors file, or it is damaged.") from None


def check_out(out: Path | None, inputs: list[str], formats: Mapping[str, Any]) -> None:
    """Refuse, before anything is run, a file that cannot be written as asked or that is one of the inputs."""
    from whyformer.archive import suffix_of

    if out is None:
        return
    suffix_of(out, formats)
    if any(os.path.abspath(out) == os.path.abspath(given) for given in inputs):
        raise InputError(f"{out} is the input; saving there would overwrite it. Give -o another name.")


def target_for(model: "Model", wanted: list[str]) -> Any:
    """A label if the model has it, else an index if it is a number; one for all inputs, or a list with one for each."""
    if not wanted:
        return None
    labels = model.labels or ()
    aims = [int(word) if word not in labels and re.fullmatch(r"-?[0-9]{1,18}", word) else word for word in wanted]
    return aims[0] if len(aims) == 1 else aims


def parsed_settings(settings: list[str]) -> dict[str, Any]:
    """start=1, own=zero, normalise=true: Python values where they are, words otherwise."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise MethodError(f"{setting!r} is not a setting. Write NAME=VALUE, such as -s start=1.")
        if name in ("method", "model", "inputs", "target", "versus"):
            raise MethodError(f"{name} is not a setting of a method. Use the option of that name.")
        parsed[name] = value_of(value.strip())
    return parsed


def value_of(word: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if word.lower() in words:
        return words[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return word


def main() -> None:
    app()


if __name__ == "__main__":
    main()
