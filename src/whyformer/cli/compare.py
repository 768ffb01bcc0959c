"""whyformer compare: several methods side by side."""

from typing import Annotated

import typer

from whyformer.cli import parsing
from whyformer.cli.options import (
    DEFAULT_MODEL,
    DebugOption,
    InputsArgument,
    JsonOption,
    ModelOption,
    OutOption,
    TargetOption,
    VersusOption,
    complete_method_names,
)
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer compare

whyformer compare cat.jpg -o methods.html

whyformer compare "a gorgeous film" -M demo/sentiment -m rollout -m attcat -m chance"""


@app.command(epilog=EXAMPLES)
def compare(
    inputs: InputsArgument = None,
    model: ModelOption = DEFAULT_MODEL,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--method",
            metavar="METHOD",
            help="Repeatable; quick ones if left out; all.",
            autocompletion=complete_method_names,
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    versus: VersusOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Several methods side by side, from one run of the model."""
    parsing.compare_and_show(inputs, model, method, target, versus, out, as_json, None)
