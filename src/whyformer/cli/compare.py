"""whyformer compare: several methods side by side."""

from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.options import DEFAULT, AsJson, Debug, Inputs, ModelName, Out, Target, Versus, method_names
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer compare

whyformer compare cat.jpg -o methods.html

whyformer compare "a gorgeous film" -M demo/sentiment -m rollout -m attcat -m chance"""


@app.command(epilog=EXAMPLES)
def compare(
    inputs: Inputs = None,
    model: ModelName = DEFAULT,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--method",
            metavar="METHOD",
            help="Repeatable; quick ones if left out; all.",
            autocompletion=method_names,
            show_default=False,
        ),
    ] = None,
    target: Target = None,
    versus: Versus = None,
    out: Out = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Several methods side by side, from one run of the model."""
    typed.compare_and_show(inputs, model, method, target, versus, out, as_json, None)
