"""whyformer similarity: why two texts or images are alike, or an image and a text."""

from typing import Annotated, Any, cast

import typer

import whyformer as why
from whyformer.cli import destination, options, running
from whyformer.cli.options import Word, list_examples, make_option
from whyformer.cli.shell import app

EXAMPLES = list_examples(
    'whyformer similarity "behind the garden there is a quiet basket" "my basket is as old as your lamp"',
    'whyformer similarity photo.png "a photo of a red circle" -M demo/captions -o alike.html',
    'whyformer similarity "a query" "a document" -M my/folder --score late_interaction',
)


@app.command("similarity", epilog=EXAMPLES)
def run_similarity(
    a: Annotated[str, typer.Argument(metavar="A", help="A text or an image file.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="A text or an image file.", show_default=False)],
    model: options.ModelOption = "demo/shared-words",
    method: Annotated[Word, options.make_method_option("See: whyformer methods.")] = None,
    score: Annotated[Word, make_option("--score", "cosine, dot, late_interaction, logit or pair.", "SCORE")] = None,
    pooling: Annotated[Word, make_option("--pooling", "mean, first, last, pooler or output.", "POOLING")] = None,
    matrix: Annotated[
        str, make_option("--matrix", "The method behind the matrix, states, or none.", "METHOD")
    ] = "auto",
    out: options.OutOption = None,
    as_json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show which words or patches make two inputs alike, and which pairs of them."""
    from whyformer._explain.method_call import choose_method

    if method is not None:
        choose_method(method, {})
    destination.check_out_file(out, [a, b], why.Similarity.formats)
    opened = running.open_quietly(model)
    result = why.explain_similarity(
        opened, a, b, method, score=cast(Any, score), pooling=pooling, matrix=None if matrix == "none" else matrix
    )
    running.show_result(result, out, as_json=as_json)
