"""whyformer compare: several methods side by side."""

from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.options import DEFAULT, AsJson, Debug, Inputs, ModelName, Out, Target, Versus
from whyformer.cli.shell import app


@app.command()
def compare(
    inputs: Inputs,
    model: ModelName = DEFAULT,
    method: Annotated[
        list[str] | None,
        typer.Option("-m", "--method", metavar="METHOD", help="Repeatable; quick ones if left out; all."),
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

    named = method[0] if method in (["all"], ["quick"]) else method or "quick"
    labelled([] if isinstance(named, str) else named)
    typed.check_out(out, inputs, FORMATS)
    opened = typed.quietly_opened(model)
    aims = {
        "target": typed.target_for(opened, target or []),
        "versus": typed.target_for(opened, [] if versus is None else [versus]),
    }
    comparison = compared(opened, typed.inputs_for(opened, inputs), named, **aims)
    print(to_json(comparison).decode("ascii") if as_json else str(comparison))
    if out is not None:
        comparison.save(out)
