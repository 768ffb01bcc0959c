"""whyformer explain: which patches or words count for the answer."""

from typing import Annotated

import typer

from whyformer.cli import gathering, parsing
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

whyformer explain

whyformer explain cat.jpg -o cat.html

whyformer explain photos/ -m rollout -m attcat -o sheet.html

whyformer explain cat.jpg --classes 3 -o classes.png

whyformer explain "a gorgeous, witty film" -M demo/sentiment -m attcat

whyformer explain "the keys to the cabinet" -M demo/decoder -t " are" --versus " is"

cat reviews.txt | whyformer explain - -M demo/sentiment -o scores.csv"""


@app.command(epilog=EXAMPLES)
def explain(
    inputs: InputsArgument = None,
    model: ModelOption = DEFAULT_MODEL,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--method",
            metavar="METHOD",
            help="See: whyformer methods. Several are compared; left out, transformer_attribution.",
            autocompletion=complete_method_names,
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    versus: VersusOption = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("-s", "--setting", metavar="NAME=VALUE", help="A setting of the method; repeatable."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", min=1, metavar="K", help="Explain the K likeliest classes on one sheet.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Scores of whole words instead of tokens.")] = False,
    out: OutOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Which patches or words count for the answer."""
    settings = parsing.parse_settings(setting or [])
    if len(method or []) > 1 or classes is not None:
        parsing.refuse_useless_options({"-s": settings, "--words": words}, "several methods or --classes")
        parsing.compare_and_show(inputs, model, method, target, versus, out, as_json, classes)
        return
    from whyformer._explain.explain import explain as explained
    from whyformer._explain.method_call import choose_method
    from whyformer._plain import archive
    from whyformer.results.explanation import Explanation
    from whyformer.results.joining import join_explanations

    name = method[0] if method else "transformer_attribution"
    choose_method(name, settings)  # refuse what is misspelt before a large model is opened
    parsing.check_out_file(out, inputs or [], Explanation.formats)
    opened = parsing.open_quietly(model)
    items = parsing.prepare_inputs(opened, gathering.gather_inputs(opened, inputs or []))
    aims = parsing.parse_aims(opened, target, versus)
    found = join_explanations(
        [explained(opened, part, name, **at, **settings) for part, at in parsing.batch_inputs(items, aims)]
    )
    found = found.words() if words else found
    print(archive.to_json_text("explanation", vars(found)) if as_json else str(found))
    if out is not None:
        found.save(out)
