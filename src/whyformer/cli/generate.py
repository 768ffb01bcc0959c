"""whyformer generate: continue a text with a language model, and explain every generated token."""

from typing import Annotated

import typer

from whyformer.cli import destination, options, running
from whyformer.cli.shell import app, keep_old_verb

EXAMPLES = """Examples:

whyformer generate "the keys to the cabinet" -o why.html

whyformer generate "12 + 7 =" -m attcat"""


@app.command("generate", epilog=EXAMPLES)
def run_generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The beginning of the text.")],
    model: options.ModelOption = "demo/decoder",
    method: Annotated[str, options.make_method_option("See: whyformer methods.", show_default=True)] = "libragrad",
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=1, help="Maximum number of tokens to generate.")] = 20,
    continuation: Annotated[
        str | None, typer.Option("--continuation", help="Explain this continuation instead of the model's own.")
    ] = None,
    out: options.OutOption = None,
    as_json: options.JsonErrorsOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Generate text and explain each token; -o why.html saves a page to click through them."""
    from whyformer._explain.generation import explain_generation
    from whyformer._explain.method_call import choose_method
    from whyformer.results.generation import Generation

    choose_method(method, {})
    destination.check_out_file(out, [], Generation.formats)
    opened = running.open_quietly(model)
    running.show_result(explain_generation(opened, prompt, method, tokens=tokens, continuation=continuation), out)


keep_old_verb("write", "generate", run_generate)
