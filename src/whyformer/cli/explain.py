"""whyformer explain: which patches or words count for the answer."""

from typing import Annotated

import typer

from whyformer.cli import gather, typed
from whyformer.cli.options import DEFAULT, AsJson, Debug, Inputs, ModelName, Out, Target, Versus, method_names
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer explain

whyformer explain cat.jpg -o cat.html

whyformer explain photos/ -m rollout -m attcat -o sheet.html

whyformer explain cat.jpg --classes 3 -o classes.png

whyformer explain "a gorgeous, witty film" -M demo/sentiment -m attcat

whyformer explain "the keys to the cabinet" -M demo/decoder -t " are" --versus " is"

cat reviews.txt | whyformer explain - -M demo/sentiment -o scores.csv"""


@app.command(epilog=EXAMPLES)
def explain(
    inputs: Inputs = None,
    model: ModelName = DEFAULT,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--method",
            metavar="METHOD",
            help="See: whyformer methods. Several are compared; left out, transformer_attribution.",
            autocompletion=method_names,
            show_default=False,
        ),
    ] = None,
    target: Target = None,
    versus: Versus = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("-s", "--setting", metavar="NAME=VALUE", help="A setting of the method; repeatable."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, metavar="K", help="Explain the K likeliest classes on one sheet.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Scores of whole words instead of tokens.")] = False,
    out: Out = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Which patches or words count for the answer."""
    settings = typed.parsed_settings(setting or [])
    if len(method or []) > 1 or classes is not None:
        typed.refuse_together({"-s": settings, "--words": words}, "several methods or --classes")
        typed.compare_and_show(inputs, model, method, target, versus, out, as_json, classes)
        return
    from whyformer import archive
    from whyformer.explanation import FORMATS, choose, joined
    from whyformer.explanation import explain as explained

    name = method[0] if method else "transformer_attribution"
    choose(name, settings)  # refuse what is misspelt before a large model is opened
    typed.check_out(out, inputs or [], FORMATS)
    opened = typed.quietly_opened(model)
    items = typed.inputs_for(opened, gather.gathered(opened, inputs or []))
    aims = typed.aims_for(opened, target, versus)
    found = joined([explained(opened, part, name, **at, **settings) for part, at in typed.batches(items, aims)])
    found = found.words() if words else found
    print(archive.text("explanation", vars(found)) if as_json else str(found))
    if out is not None:
        found.save(out)
