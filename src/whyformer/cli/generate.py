"""whyformer write: a language model goes on with a text, and every token of it is explained."""

from typing import Annotated

import typer

from whyformer.cli import parsing
from whyformer.cli.options import DebugOption, ModelOption, OutOption, complete_method_names
from whyformer.cli.shell import app

EXAMPLES = """Examples:

whyformer write "the keys to the cabinet" -o why.html

whyformer write "12 + 7 =" -m attcat"""


@app.command(epilog=EXAMPLES)
def write(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="How the text begins.")],
    model: ModelOption = "demo/decoder",
    method: Annotated[
        str,
        typer.Option("-m", "--method", metavar="METHOD", help="See: methods.", autocompletion=complete_method_names),
    ] = "attcat",
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=1, help="How many tokens at most.")] = 20,
    continuation: Annotated[
        str | None, typer.Option("--continuation", help="Explain this continuation instead of the model's own.")
    ] = None,
    out: OutOption = None,
    debug: DebugOption = False,
) -> None:
    """Why each token was said: click through them on a page (-o why.html)."""
    from whyformer._explain.generation import explain_generation
    from whyformer._explain.method_call import choose_method
    from whyformer.results.generation import Generation

    choose_method(method, {})
    parsing.check_out_file(out, [], Generation.formats)
    found = explain_generation(parsing.open_quietly(model), prompt, method, tokens=tokens, continuation=continuation)
    print(found)
    if out is not None:
        found.save(out)
