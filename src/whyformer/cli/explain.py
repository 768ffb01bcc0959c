"""whyformer explain: which patches or words count for the answer."""

from typing import Annotated

import typer

from whyformer.cli import typed
from whyformer.cli.options import DEFAULT, AsJson, Debug, Inputs, ModelName, Out, Target, Versus
from whyformer.cli.shell import app


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

    settings = typed.parsed_settings(setting or [])
    choose(method, settings)  # refuse what is misspelt before a large model is opened
    typed.check_out(out, inputs, FORMATS)
    opened = typed.quietly_opened(model)
    aims = {
        "target": typed.target_for(opened, target or []),
        "versus": typed.target_for(opened, [] if versus is None else [versus]),
    }
    explanation = explained(opened, typed.inputs_for(opened, inputs), method, **aims, **settings)
    print(archive.text("explanation", vars(explanation)) if as_json else str(explanation))
    if out is not None:
        explanation.save(out)
